"""Completion for shells, built from the command's own parser: ``eval "$(hocket completion bash)"``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence

SHELLS = ("bash", "fish", "zsh")


def write(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell to run.

    Args:
        parser: The command's parser, with its subcommands.
        shell: One of `SHELLS`.
    """
    commands = _list_commands(parser)
    options = {name: _list_options(command) for name, command in commands.items()}
    helps = {action.dest: action.help or "" for action in _get_subparsers(parser)._choices_actions}
    if shell == "fish":
        return _write_fish(options, helps)
    lines = ["autoload -U +X compinit && compinit", "autoload -U +X bashcompinit && bashcompinit"] * (shell == "zsh")
    return "\n".join([*lines, *_write_bash(options)]) + "\n"


def _get_subparsers(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _list_commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    return dict(_get_subparsers(parser).choices)


def _list_options(parser: argparse.ArgumentParser) -> list[str]:
    shown = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    return sorted({name for action in shown for name in action.option_strings if "_" not in name})


def _write_bash(options: Mapping[str, Sequence[str]]) -> list[str]:
    cases = [f"        {name}) words={shlex.quote(' '.join(found))} ;;" for name, found in options.items()]
    return [
        "_hocket() {",
        "    local words word=${COMP_WORDS[COMP_CWORD]}",
        "    case ${COMP_WORDS[1]} in",
        *cases,
        "        *) words= ;;",
        "    esac",
        "    if [ $COMP_CWORD -eq 1 ]; then",
        f'        COMPREPLY=($(compgen -W {shlex.quote(" ".join([*options, "--help", "--version"]))} -- "$word"))',
        '    elif [ "${word#-}" != "$word" ]; then',
        '        COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "    fi",
        "}",
        "complete -o default -F _hocket hocket",
    ]


def _write_fish(options: Mapping[str, Sequence[str]], helps: Mapping[str, str]) -> str:
    lines = []
    for name, found in options.items():
        lines.append(f"complete -c hocket -n __fish_use_subcommand -a {name} -d {shlex.quote(helps.get(name, ''))}")
        for option in found:
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            lines.append(f"complete -c hocket -n '__fish_seen_subcommand_from {name}' {kind}")
    return "\n".join(lines) + "\n"
