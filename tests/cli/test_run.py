"""`hocket run`: real launches of real scripts."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hocket import exceptions
from hocket.cli import flags, main
from hocket.cli.launch import command, imports, output, report
from hocket.cli.launch import plan as plans
from hocket.engine import node

Launch = Callable[..., "subprocess.Popen[str]"]

WAIT = "import signal; print('here', flush=True); signal.pause()"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def launch(folder: Path) -> Iterator[Launch]:
    """Write a script, and start ``hocket run`` with these options and it; `args` follow the script."""
    started: list[subprocess.Popen[str]] = []

    def start(
        source: str, *options: str, args: tuple[str, ...] = (), name: str = "script.py", target: str = ""
    ) -> subprocess.Popen[str]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        process = subprocess.Popen(
            [sys.executable, "-m", "hocket.cli", "run", *options, target or name, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate()
    assert process.returncode == code, (process.returncode, out, err)
    return out, err


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return sorted(process.stdout.readline().rstrip("\n") for _ in range(count))


def wait_until_gone(pids: list[int]) -> None:
    """The promise: nothing is left after two seconds."""
    deadline = time.monotonic() + 2
    while left := [pid for pid in pids if psutil.pid_exists(pid) and not is_zombie(pid)]:
        assert time.monotonic() < deadline, f"still there: {[psutil.Process(pid).cmdline() for pid in left]}"
        time.sleep(0.01)


def is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# --- what a rank sees -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rank_has_the_variables_of_torchrun(launch: Launch) -> None:
    process = launch(
        "import os, json; print(json.dumps(dict(os.environ)), flush=True)",
        *("--nproc-per-node=2", "--standalone", "--nnodes", "1", "--max-restarts", "3", "--threads", "5"),
    )
    out, _ = finish(process)
    ranks = sorted((json.loads(line) for line in out.splitlines()), key=lambda found: found["RANK"])
    for number, found in enumerate(ranks):
        fixed = {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "ROLE_RANK": str(number),
            "GROUP_RANK": "0",
            "ROLE_NAME": "default",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "ROLE_WORLD_SIZE": "2",
            "GROUP_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGINT,SIGTERM,SIGHUP",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "OMP_NUM_THREADS": "5",
        }
        assert {name: found[name] for name in fixed} == fixed
    assert len(ranks) == 2
    assert len({found["TORCHELASTIC_RUN_ID"] for found in ranks}) == 1
    assert len({found["MASTER_PORT"] for found in ranks}) == 1
    assert len({found["TORCHELASTIC_ERROR_FILE"] for found in ranks}) == 2


@pytest.mark.slow
def test_a_script_finds_itself_as_if_python_had_started_it(launch: Launch, folder: Path) -> None:
    source = """
        import inspect, os, sys
        import helper
        assert __name__ == "__main__" and __spec__ is None, __name__
        assert not [name for name in sys.modules if name.partition(".")[0] == "hocket"]
        assert sys.modules["__main__"].__dict__ is globals()
        print(sys.argv, __file__, sys.path[0], sys.orig_argv[1:], helper.value)
    """
    (folder / "inside").mkdir()
    (folder / "inside" / "helper.py").write_text("value = 7")
    out, _ = finish(launch(source, name="inside/script.py", args=("--epochs", "3", "--", "-m", "--workers")))
    ours = ["inside/script.py", "--epochs", "3", "--", "-m", "--workers"]
    assert out == f"{ours} {folder}/inside/script.py {folder}/inside {ours} 7\n"
    plain = subprocess.run([sys.executable, *ours], capture_output=True, text=True, check=True)
    assert plain.stdout == out


@pytest.mark.slow
def test_the_current_folder_shadows_nothing_of_the_launcher(folder: Path) -> None:
    for name in ("re", "json", "select", "torch"):
        (folder / f"{name}.py").write_text("raise RuntimeError('loaded by the launcher')")
    source = "import json, re, sys; print(json.__name__, re.__name__)"
    (folder / "inside").mkdir()
    (folder / "inside" / "script.py").write_text(source)
    boot = "import sys; del sys.path[0]; from hocket.cli import main; sys.exit(main.main())"  # as the `hocket` script
    command_line = [sys.executable, "-c", boot, "run", "inside/script.py"]
    done = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("json re\n", "")


@pytest.mark.slow
def test_a_module_and_a_package_run_as_by_python_m(launch: Launch, folder: Path) -> None:
    source = "import sys; print(__name__, __spec__.name, __package__, sys.argv, sys.path[0])"
    out, _ = finish(launch(source, "-m", name="package/module.py", target="package.module", args=("--epochs", "3")))
    assert out == f"__main__ package.module package ['{folder}/package/module.py', '--epochs', '3'] {folder}\n"
    out, _ = finish(launch(source, "--workers", "1", "-m", name="package/__main__.py", target="package"))
    assert out == f"__main__ package.__main__ package ['{folder}/package/__main__.py'] {folder}\n"
    out, _ = finish(launch("import sys; print(__name__, sys.path[0])", name="package/__main__.py", target="package"))
    assert out == f"__main__ {folder}/package\n"


@pytest.mark.slow
def test_processes_of_multiprocessing_find_the_script(launch: Launch) -> None:
    source = """
        import multiprocessing, os

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            for method in ("spawn", "fork", "forkserver"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(pool.apply(double, (21,)), flush=True)
    """
    assert finish(launch(source))[0] == "42\n" * 3


@pytest.mark.slow
def test_an_end_is_the_end_of_an_interpreter(launch: Launch) -> None:
    source = """
        import atexit, threading
        atexit.register(print, "at exit")
        event = threading.Event()
        threading.Thread(target=lambda: (event.wait(), print("thread"))).start()
        threading.Timer(0.01, event.set).start()
    """
    assert finish(launch(source))[0] == "thread\nat exit\n"


GROUP = """
    import os, select
    {first}
    import torch
    import torch.distributed as dist

    dist.init_process_group({backend})
    store = dist.distributed_c10d._get_default_store()
    for group in (dist.group.WORLD, dist.new_group(backend="hocket"), dist.new_group(backend="gloo")):
        value = torch.ones(2) * (dist.get_rank() + 1)
        dist.all_reduce(value, group=group)
        print(dist.get_rank(), value.tolist(), os.environ["MASTER_PORT"], flush=True)
    if dist.get_rank() == 0:
        store.set("pid", str(os.getpid()))
        store.get("seen")
    else:
        gone = os.pidfd_open(int(store.get("pid")))
        store.set("seen", "yes")
        select.select([gone], [], [])
        store.set("still", "there")
    os._exit(0)
"""
"""Ranks that use each backend. Rank 0 is gone before rank 1 uses the store for the last time."""


@pytest.mark.slow
def test_every_backend_works_unchanged_in_two_launches_at_once(launch: Launch) -> None:
    scripts = [
        GROUP.format(first="", backend=""),
        GROUP.format(first="os.environ['SOME'] = 'value'  # so each rank loads torch itself", backend="'hocket'"),
    ]
    launches = [launch(source, "--workers", "2", name=f"script{number}.py") for number, source in enumerate(scripts)]
    ports = set()
    for process in launches:
        lines = [line.rpartition(" ") for line in sorted(finish(process)[0].splitlines())]
        assert [line[0] for line in lines] == ["0 [3.0, 3.0]"] * 3 + ["1 [3.0, 3.0]"] * 3
        ports |= {line[2] for line in lines}
    assert len(ports) == 2


@pytest.mark.slow
def test_ranks_that_share_torch_draw_their_own_numbers(launch: Launch) -> None:
    source = """
        import sys
        shared = "torch" in sys.modules
        import torch, random
        import numpy.random
        print(shared, random.random(), numpy.random.rand(), torch.rand(1).item(), flush=True)
    """
    lines = [line.split() for line in finish(launch(source, "--workers", "2"))[0].splitlines()]
    assert [line[0] for line in lines] == ["True", "True"]
    assert all(ours != theirs for ours, theirs in zip(lines[0][1:], lines[1][1:], strict=True)), lines


@pytest.mark.slow
def test_lines_have_prefixes_on_request(launch: Launch) -> None:
    source = "import sys; print('out'); print('err', file=sys.stderr); print('no end', end='')"
    out, err = finish(launch(source, "--workers", "2", "--prefix"))
    assert sorted(out.splitlines()) == ["[0] no end", "[0] out", "[1] no end", "[1] out"]
    assert sorted(err.splitlines()) == ["[0] err", "[1] err"]


# --- failure ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_error_names_the_rank_and_ends_the_others(launch: Launch) -> None:
    source = f"""
        import os
        if os.environ["RANK"] == "1":
            raise ValueError("rank 1 cannot go on")
        {WAIT}
    """
    _, err = finish(launch(source, "--workers", "3"), 1)
    assert "hocket run: rank 1 of 3 failed first: it raised ValueError: rank 1 cannot go on (pid " in err
    assert "Ranks 0, 2: ended by the launcher afterwards." in err
    assert "--max-restarts N" in err
    assert err.count("Traceback") == 2, "as it came, and in the message"
    assert "agent.py" not in err
    assert "rank.py" not in err


@pytest.mark.slow
def test_the_exit_code_is_that_of_the_rank(launch: Launch) -> None:
    _, err = finish(launch("import sys; sys.exit(3)", "--workers", "2"), 3)
    assert "exited with code 3" in err
    _, err = finish(launch("import sys; sys.exit('all is lost')"), 1)
    assert "Last lines of rank 0's stderr:\n    all is lost" in err
    finish(launch("raise SystemExit"))
    _, err = finish(launch("def f(:", name="wrong.py"), 1)
    assert "raised SyntaxError" in err


@pytest.mark.slow
def test_a_killed_rank_is_named(launch: Launch) -> None:
    source = f"""
        import os
        print(os.environ["RANK"], os.getpid())  # lines come when they are complete
        {WAIT}
    """
    process = launch(source, "--workers", "2")
    pids = [int(line.split()[1]) for line in read_lines(process, 4)[:2]]
    os.kill(pids[1], signal.SIGKILL)
    _, err = finish(process, 137)
    assert f"rank 1 of 2 failed first: it was killed by signal 9 (SIGKILL) (pid {pids[1]}, after " in err
    assert "peak memory" in err
    assert "SIGKILL comes from outside" in err
    assert "Rank 0: ended by the launcher afterwards." in err
    wait_until_gone(pids)


@pytest.mark.slow
def test_a_crash_shows_the_stack(launch: Launch) -> None:
    source = """
        import ctypes
        def read_nothing():
            ctypes.string_at(0)
        read_nothing()
    """
    _, err = finish(launch(source), 128 + signal.SIGSEGV)
    assert "(SIGSEGV)" in err
    assert "in read_nothing" in err
    assert "agent.py" not in err


@pytest.mark.slow
def test_the_cause_is_first_though_its_consequence_ends_sooner(launch: Launch, folder: Path) -> None:
    source = """
        import atexit, os, pathlib, signal, sys, threading
        if os.environ["RANK"] == "0":
            while not pathlib.Path("failed").exists():
                pass
            raise ConnectionError("peer is gone")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        atexit.register(lambda: (pathlib.Path("failed").touch(), threading.Event().wait(0.3)))
        raise ValueError("the cause")
    """
    _, err = finish(launch(source, "--workers", "2"), 1)
    assert "rank 1 of 2 failed first: it raised ValueError: the cause" in err
    assert "Rank 0: raised ConnectionError: peer is gone, later." in err


@pytest.mark.slow
def test_all_ranks_start_again(launch: Launch) -> None:
    source = """
        import os
        count, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
        if count < 2 and rank == "1":
            os._exit(5)
        print(rank, count, flush=True)
    """
    out, err = finish(launch(source, "--workers", "2", "--max-restarts", "2"))
    assert {"0 2", "1 2"} <= set(out.splitlines())
    assert [line.partition(";")[2] for line in err.splitlines()] == [
        " all ranks start again, restart 1 of 2.",
        " all ranks start again, restart 2 of 2.",
    ]
    _, err = finish(launch("import os; os._exit(5)", "--max-restarts", "1"), 5)
    assert "attempt 2 of 2" in err
    assert "No restart is left" in err


@pytest.mark.slow
def test_what_torch_records_is_shown(launch: Launch) -> None:
    source = """
        import os, sys
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def main():
            raise ValueError("recorded")

        try:
            main()
        except ValueError:
            os._exit(4)
    """
    _, err = finish(launch(source), 4)
    assert "Its record in TORCHELASTIC_ERROR_FILE:" in err
    assert "ValueError: recorded" in err


# --- nothing is left --------------------------------------------------------------------------------------------------

FAMILY = """
    import os, signal, subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(os.getpid(), child.pid, flush=True)
    {last}
"""
"""A rank with a child that has left its process group and its session."""


def read_family(process: subprocess.Popen[str]) -> list[int]:
    pids = [int(word) for line in read_lines(process, 2) for word in line.split()]
    keeper = psutil.Process(process.pid).children()
    return [*pids, *(child.pid for child in keeper)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_no_process_outlives_a_launcher_that_is_ended(launch: Launch, number: signal.Signals) -> None:
    is_ignored = number != signal.SIGKILL and signal.getsignal(number) is signal.SIG_IGN
    if is_ignored:  # as under nohup, which a launch would heed
        signal.signal(number, signal.SIG_DFL)
    process = launch(FAMILY.format(last="signal.pause()"), "--workers", "2")
    if is_ignored:
        signal.signal(number, signal.SIG_IGN)
    pids = read_family(process)
    assert len(pids) == 5
    process.send_signal(number)
    _, err = finish(process, -9 if number == signal.SIGKILL else 128 + number)
    wait_until_gone(pids)
    if number != signal.SIGKILL:
        assert f"hocket run: stopped by {number.name}" in err


@pytest.mark.slow
def test_a_store_that_is_killed_is_named(launch: Launch) -> None:
    process = launch(f"import os; print(os.getpid(), flush=True)\n{WAIT}")
    number, _ = read_lines(process, 2)
    below = psutil.Process(process.pid).children(recursive=True)
    (keeper,) = psutil.Process(process.pid).children()
    (store,) = [child for child in keeper.children() if child.pid != int(number)]
    assert all(child.cmdline()[-1] == "script.py" for child in below), "ps should tell whose processes they are"
    store.kill()
    assert process.stderr is not None
    assert f"serves the store at MASTER_PORT (pid {store.pid}) ended with status -9" in process.stderr.readline()
    process.terminate()
    finish(process, 143)


@pytest.mark.slow
def test_no_process_outlives_a_keeper_that_is_killed(launch: Launch) -> None:
    process = launch(FAMILY.format(last="signal.pause()"), "--workers", "2")
    pids = read_family(process)
    os.kill(pids[-1], signal.SIGKILL)
    _, err = finish(process, 1)
    wait_until_gone(pids)
    assert "the process that supervises the ranks was killed by signal 9 (SIGKILL)" in err


@pytest.mark.slow
def test_no_process_outlives_a_success(launch: Launch) -> None:
    process = launch(FAMILY.format(last="sys.stdin.readline()"), "--workers", "2", name="script.py")
    assert process.stdout is not None
    pids = [int(word) for line in read_lines(process, 2) for word in line.split()]
    finish(process)
    wait_until_gone(pids)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_launcher_can_be_ended_while_it_loads(launch: Launch, folder: Path, number: signal.Signals) -> None:
    (folder / "torch.py").write_text("import os\nprint(os.getpid(), flush=True)\nwhile True:\n    pass")
    process = launch("import torch")
    pid = int(read_lines(process, 1)[0])
    process.send_signal(number)
    _, err = finish(process, 130 if number == signal.SIGINT else -9)
    wait_until_gone([pid])
    assert ("stopped by SIGINT (Ctrl-C)" in err) == (number == signal.SIGINT)


@pytest.mark.slow
def test_a_launcher_that_is_killed_starts_no_more_ranks(launch: Launch, folder: Path) -> None:
    seen = folder / "seen"
    seen.mkdir()
    process = launch(
        "import os, sys\nopen(f'{sys.argv[1]}/' + os.environ['RANK'], 'w').close()",
        *("--workers", "2000"),
        args=(str(seen),),
    )
    while not any(seen.iterdir()):
        time.sleep(0.01)
    (keeper,) = (child.pid for child in psutil.Process(process.pid).children())
    process.kill()
    wait_until_gone([keeper])
    assert 0 < len(list(seen.iterdir())) < 2000


@pytest.mark.slow
def test_torchruns_variable_says_how_many(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    process = launch("import os; print(os.environ['RANK'])")
    assert read_lines(process, 2) == ["0", "1"]
    finish(process)


@pytest.mark.slow
def test_an_import_that_fails_before_the_ranks_start_is_told(launch: Launch, folder: Path) -> None:
    """They import the rest of it, and may fail in another way."""
    (folder / "torch.py").write_text(
        "import json\nassert not hasattr(json, 'half'), 'in two halves'\njson.half = 1\n1 / 0"
    )
    process = launch("import torch", "--workers", "2")
    _, err = finish(process, 1)
    assert (
        err.count("ZeroDivisionError: division by zero\nhocket run: the import of torch failed, as above, before") == 1
    )
    assert "AssertionError: in two halves" in err


@pytest.mark.slow
def test_a_rank_of_a_terminal_has_a_terminal(folder: Path) -> None:
    (folder / "script.py").write_text(
        "import os, sys; print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(2), file=sys.stderr)"
    )
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 77, 0, 0))
    command_line = [sys.executable, "-m", "hocket.cli", "run", "script.py"]
    done = subprocess.run(command_line, stdin=theirs, stdout=theirs, stderr=theirs, check=True, start_new_session=True)
    assert done.returncode == 0
    os.close(theirs)
    assert os.read(ours, 4096) == b"True True os.terminal_size(columns=77, lines=24)\r\n"
    os.close(ours)


@pytest.mark.slow
def test_ranks_that_heed_a_signal_may_end_well(launch: Launch) -> None:
    source = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
        print("here", flush=True)
        while True:
            time.sleep(0.01)  # its work; a signal just before a pause() would be handled after it, which is never
    """
    process = launch(source, "--workers", "2")
    read_lines(process, 2)
    process.terminate()
    assert finish(process)[0] == "saved\nsaved\n"


@pytest.mark.slow
def test_ranks_that_ignore_a_signal_are_killed_after_the_grace(launch: Launch) -> None:
    source = """
        import signal, time
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: print("no", flush=True))
        print("here", flush=True)
        while True:
            time.sleep(0.01)
    """
    process = launch(source, "--grace", "0.1")
    read_lines(process, 1)
    process.terminate()
    finish(process, 143)
    process = launch(source, "--grace", "600")
    read_lines(process, 1)
    process.send_signal(signal.SIGINT)
    assert read_lines(process, 1) == ["no"]
    process.send_signal(signal.SIGINT)
    finish(process, 130)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "there is no script 'missing.py' .*-m before its name"),
        (["-m", "missing_module"], "there is no module 'missing_module' .*Check the name"),
        (["-m", "json.missing"], "there is no module 'json.missing'"),
        (["-m", "email"], "the package 'email' has no __main__.py"),
        (["-m", "script.py"], "Did you mean the script script.py, without -m"),
        (["empty"], "the folder 'empty' has no __main__.py"),
        (["--workers", "0", "script.py"], "--workers must be a whole number from 1 to 10,000.* received '0'"),
        (["--workers", "many", "script.py"], "received 'many'"),
        (["--workers", "gpu", "script.py"], "this machine has none. Write --workers cpu"),
    ],
)
def test_what_cannot_be_run_is_said_with_code_2(
    arguments: list[str],
    message: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (folder / "script.py").touch()
    (folder / "empty").mkdir()
    assert main.main(["run", *arguments]) == 2
    assert_matches(capsys.readouterr().err, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"the following arguments are required: SCRIPT\n"),
        (["--log-dir=", "script.py"], "--log-dir.*must not be empty"),
        (["--local-ranks-filter", "", "script.py"], "--local-ranks-filter.*must not be empty"),
        (["--numa-binding", "node", "script.py"], "hocket run does not have torchrun's option --numa-binding. Leave"),
        (["--virtual-local-rank", "script.py"], "does not have torchrun's option --virtual-local-rank"),
        (["--max-restarts", "-1", "script.py"], "must be a whole number that is 0 or more, but received '-1'"),
        (["--threads", "0", "script.py"], "must be a whole number that is 1 or more, but received '0'"),
        (["--grace", "nan", "script.py"], "must be a number of seconds, 0 or more, but received 'nan'"),
        (["--nnodes=2", "script.py"], "on one machine only, but received '2'. Use torchrun, or a trainer on Ray"),
        (["--backend", "nccl", "script.py"], "--backend: invalid choice: 'nccl'"),
        (["--nonsense", "script.py"], r"usage: hocket run \[options\]"),
        (["--nonsense", "script.py"], "hocket run: error: unrecognized arguments: --nonsense"),
        (["--epochs", "3", "script.py"], "unrecognized arguments: --epochs. Write the script's own arguments after"),
        (
            ["--worker", "2", "script.py"],
            "unrecognized arguments: --worker. Did you mean --workers 2. Write the script's own",
        ),
        (["--worker=2", "script.py"], "--worker=2. Did you mean --workers 2."),
        (["-n", "2", "script.py"], "-n. Did you mean --workers 2."),
        (["-np", "2", "script.py"], "-np. Did you mean --workers 2."),
        (["-np4", "script.py"], "-np4. Did you mean --workers 4."),
        (["--num_processes", "2", "script.py"], "Did you mean --workers 2."),
        (["--nproc_per_nod", "2", "script.py"], "Did you mean --nproc-per-node 2."),
        (["--prefx", "--worker", "2", "script.py"], "Did you mean --prefix, --workers 2."),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main(["run", *arguments])
    assert_matches(capsys.readouterr().err, message)


def assert_matches(text: str, pattern: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){pattern}"):
        raise ValueError(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ("--workers", "2"),
            (
                "`--workers` follows the script, which receives it. If it is meant for the launcher, write hocket run "
                "--workers 2 script.py"
            ),
        ),
        (
            ("--epochs", "3", "--max_restarts=2", "--prefix", "--prefix"),
            (
                "`--max_restarts`, `--prefix` follow the script, which receives them. If they are meant for the "
                "launcher, write hocket run --max_restarts=2 --prefix script.py"
            ),
        ),
        (("--epochs", "3", "--", "--workers", "2"), ""),
        (("--threads", "2"), ""),
        (("-m", "--role", "trainer"), ""),
    ],
)
def test_options_of_the_launcher_behind_the_script_are_told_of(launch: Launch, args, said: str) -> None:
    out, words = finish(launch("import sys; print(sys.argv[1:])  # takes --threads", args=args))
    assert out == f"{[*args]}\n"
    assert words == (f"hocket run: {said}\n" if said else "")


def test_options_behind_a_module_are_told_of_with_it() -> None:
    parser = main.build_parser().parse_args(["run", "script.py"]).parser
    said = flags.describe_misplaced(parser, "package.script", ["--workers", "2"], is_module=True)
    assert said.endswith(
        "follows the module, which receives it. If it is meant for the launcher, write hocket run "
        "--workers 2 -m package.script"
    )


def test_workers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert (command.parse_workers("auto"), command.parse_workers("gpu"), command.parse_workers("7")) == (3, 3, 7)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert command.parse_workers("auto") == command.parse_workers("cpu") >= 1
    with pytest.raises(ValueError, match="--workers must be a whole number from 1 to 10,000"):
        command.parse_workers("9" * 30)


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "count_cpus", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    chosen = [command.choose_threads(ranks, None) for ranks in (1, 2, 3, 8, 16)]
    assert chosen == [None, "4", "2", "1", "1"]
    assert command.choose_threads(2, 3) == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    assert command.choose_threads(2, None) is None


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import json", ()),
        ("import torch", ("torch",)),
        ("def main():\n    from torch.nn import Linear", ("torch",)),
        ("import helper", ("torch", "torch._dynamo")),
        ("import torch\ntorch.optim.SGD", ("torch", "torch._dynamo")),
        ("import os\nrank = os.environ['RANK']\nimport torch", ("torch",)),
        ("import torch, os\nos.environ['A'] = 'b'", ("torch",)),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch", ()),
        ("import os\nos.environ.setdefault('A', 'b')\nimport torch", ()),
        ("from os import environ\nenviron |= {}\nimport torch", ()),
        ("import os\nos.putenv('A', 'b')\nimport torch", ()),
        ("def f(:", ()),
    ],
)
def test_whether_a_script_needs_torch_is_read(source: str, modules: tuple[str, ...], folder: Path) -> None:
    (folder / "helper.py").write_text("import other")
    (folder / "other.py").write_text("import helper\nimport torch.optim")
    (folder / "script.py").write_text(source)
    assert imports.list_modules("script.py", (str(folder),)) == modules


def test_a_plan_travels() -> None:
    plan = plans.LaunchPlan(target="ä.py", args=("a b", "\n"), num_workers=3, modules=("torch",), run_id="x")
    assert "\n" not in plan.format()
    assert plans.parse_plan(plan.format()) == plan


def test_a_reader_that_does_not_read_holds_the_ranks_up_and_nothing_else() -> None:
    ours, theirs = os.pipe()
    target, full = os.pipe()
    os.set_blocking(full, False)
    while select.select([], [full], [], 0)[1]:
        os.write(full, bytes(4096))
    usual = os.dup(2)
    os.dup2(full, 2)
    try:
        relay = output.Relay()
        source = relay.add(ours, 2)
        os.write(theirs, b"last words\n")
        relay.handle(ours)
        relay.drain(0.05)
        relay.close()
    finally:
        os.dup2(usual, 2)
        for fd in (theirs, target, full, usual):
            os.close(fd)
    assert source.read_tail() == "last words"


def test_a_tail_shows_the_last_state_of_a_progress_bar() -> None:
    source = output.Source(0, 2, b"")
    source.tail.keep(b"begin\n 1%\r 2%\r 3%\r\nend\r\n")
    assert source.read_tail() == "begin\n 3%\nend"


def build_ending(rank: int, at: float, **facts: object) -> report.Ending:
    death = exceptions.Death(pid=100 + rank, **facts)  # type: ignore[arg-type]
    return report.Ending(rank=rank, death=death, ended_at=at, ran_s=1.0)


def test_memory_that_ran_out_is_named_with_what_to_do() -> None:
    endings = [
        build_ending(0, 2.0, exit_code=1),
        build_ending(1, 1.0, signal_number=9, out_of_memory=True),
        build_ending(2, 0.5, exit_code=0),
        build_ending(3, 0.4, signal_number=15, expected=True),
    ]
    text = report.explain(endings, attempt=0, max_restarts=0)
    assert "rank 1 of 4 failed first: it was killed by signal 9 (SIGKILL) (pid 101, after 1.0 s)." in text
    assert (
        "Rank 0: exited with code 1, later.\nRank 2: ended without an error.\nRank 3: ended by the launcher afterwards."
        in text
    )
    assert "use smaller batches, or fewer --workers" in text


def test_a_killed_rank_is_the_cause_of_what_others_raise_when_they_lose_it() -> None:
    lost = build_ending(0, 1.0, exit_code=1)
    killed = build_ending(1, 1.3, signal_number=9)
    aborted = build_ending(2, 1.2, signal_number=6)
    late = build_ending(3, 9.0, signal_number=9)
    assert report.find_first([lost, killed, aborted]) is killed
    assert report.find_first([lost, aborted, late]) is lost
    text = report.explain([lost, killed], attempt=0, max_restarts=0)
    assert "rank 1 of 2 failed first: it was killed by signal 9 (SIGKILL)" in text
    assert "Rank 0: exited with code 1, just before that failure was noticed.\nSIGKILL comes from outside" in text


def test_a_rank_that_somebody_killed_is_not_said_to_be_ended_by_us(launch: Launch, tmp_path: Path) -> None:
    source = f"""
        import os, pathlib, signal, sys, time

        def end(*_):
            time.sleep({report.RACE_SECONDS} + 0.5)
            os.kill(os.getpid(), signal.SIGKILL)

        is_ready = pathlib.Path({str(tmp_path / "ready")!r})
        if os.environ["RANK"] == "0":
            while not is_ready.exists():
                time.sleep(0.01)
            sys.exit(3)
        signal.signal(signal.SIGTERM, end)
        is_ready.touch()
        while True:
            time.sleep(0.01)
    """
    _, err = finish(launch(source, "--workers", "2", "--grace", "30"), 3)
    assert "rank 0 of 2 failed first: it exited with code 3" in err
    assert "Rank 1: was killed by signal 9 (SIGKILL), later." in err


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"not json", "not json"),
        (b'{"message": "plain"}', "plain"),
        (b'{"message": {"message": "m", "extraInfo": {"py_callstack": "stack"}}}', "stack"),
        (b'{"message": {"message": "m"}}', "m"),
        (b"[1]", "[1]"),
    ],
)
def test_an_error_file_is_read_in_every_form(data: bytes, text: str) -> None:
    assert report.parse_recorded(data) == text


def test_options_of_torchrun_that_change_nothing_are_taken(launch: Launch) -> None:
    process = launch(
        "import os; print(os.environ['WORLD_SIZE'])",
        *(
            "--nproc_per_node=1",
            "--rdzv_backend=c10d",
            "--rdzv-endpoint",
            "localhost:0",
            "--rdzv_id",
            "7",
            "--node_rank=0",
        ),
        *("--master_addr=127.0.0.1", "--master_port", "29500", "--monitor_interval", "5", "--role", "trainer"),
        *("--start_method", "spawn", "--run-path"),
    )
    out, words = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "1\n")
    (line,) = words.splitlines()
    assert line.startswith("hocket run: without effect: --rdzv_backend, --rdzv-endpoint, --rdzv_id, --node_rank, ")
    assert line.endswith("All ranks are on one machine, and find each other without these options.")


WRITES = """
import os, sys
print("out", os.environ["RANK"])
print("error", os.environ["RANK"], file=sys.stderr)
"""


def read_logs(folder: Path) -> dict[str, str]:
    """Return the text of each file of a launch."""
    (run,) = folder.iterdir()
    return {str(path.relative_to(run)): path.read_text() for path in run.rglob("*.log")}


def sort_words(out: str, words: str) -> tuple[list[str], list[str]]:
    return sorted(out.splitlines()), sorted(line for line in words.splitlines() if not line.startswith("hocket run"))


@pytest.mark.parametrize(
    ("options", "logged", "shown", "shown_errors"),
    [
        ([], ["0/stderr", "0/stdout", "1/stderr", "1/stdout"], ["out 0", "out 1"], ["error 0", "error 1"]),
        (["--redirects", "3"], ["0/stderr", "0/stdout", "1/stderr", "1/stdout"], [], []),
        (["-r", "0:1,1:2"], ["0/stdout", "1/stderr"], ["out 1"], ["error 0"]),
        (["-t", "0:3"], ["0/stderr", "0/stdout"], ["out 0", "out 1"], ["error 0", "error 1"]),
        (["-r", "1", "--tee", "1:1"], ["0/stdout", "1/stdout"], ["out 1"], ["error 0", "error 1"]),
        (
            ["--tee", "3", "--local-ranks-filter", "1"],
            ["0/stderr", "0/stdout", "1/stderr", "1/stdout"],
            ["out 1"],
            ["error 1"],
        ),
    ],
)
def test_output_goes_to_files(launch: Launch, folder: Path, options, logged, shown, shown_errors) -> None:
    out, words = finish(launch(WRITES, "--workers", "2", "--log-dir", "logs", *options))
    assert f"hocket run: output goes to {Path('logs')}" in words
    found = read_logs(folder / "logs")
    assert sorted(found) == [f"attempt_0/{name}.log" for name in logged]
    for name, text in found.items():
        rank = name.split("/")[1]
        assert text == (f"out {rank}\n" if "stdout" in name else f"error {rank}\n")
    assert sort_words(out, words) == (shown, shown_errors)


def test_output_of_some_ranks_is_shown(launch: Launch) -> None:
    assert sort_words(*finish(launch(WRITES, "--workers", "3", "--local_ranks_filter", "0,2"))) == (
        ["out 0", "out 2"],
        ["error 0", "error 2"],
    )


@pytest.mark.parametrize("way", ["signals come", "stdout does not wait"])
def test_a_large_print_is_whole(launch: Launch, way: str) -> None:
    prepare = {
        "signals come": "signal.signal(14, lambda *given: None); signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)",
        "stdout does not wait": "os.set_blocking(1, False)",
    }
    source = f"import os, signal; {prepare[way]}\nfor number in range(20): print(chr(97 + number) * 200_000)\n"
    source += "signal.setitimer(signal.ITIMER_REAL, 0)"
    out, _ = finish(launch(source))
    assert [(line[:1], len(line)) for line in out.splitlines()] == [(chr(97 + number), 200_000) for number in range(20)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_terminal_that_is_not_read_keeps_no_launch_from_its_end(folder: Path, number: int) -> None:
    (folder / "script.py").write_text(
        "import os, sys; print(os.getpid(), flush=True)\nwhile True: os.write(2, b'.' * 4000)"
    )
    master, slave = os.openpty()
    command = [sys.executable, "-m", "hocket.cli", "run", "--workers", "2", "--grace", "1", "script.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, text=True, start_new_session=True) as launcher:
        os.close(slave)
        pids = [int(line) for line in read_lines(launcher, 2)]
        for _ in range(20):
            os.read(master, 300)  # the next write finds a little room
        pids += [process.pid for process in psutil.Process(launcher.pid).children(recursive=True)]
        launcher.send_signal(number)
        launcher.wait()
        wait_until_gone(pids)
    os.close(master)


def test_a_notice_that_cannot_be_written_keeps_no_rank_from_running(folder: Path) -> None:
    (folder / "script.py").write_text("print('ran')")
    command = [sys.executable, "-m", "hocket.cli", "run", "--log-dir", "logs", "--rdzv-id", "1", "script.py"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_each_attempt_has_files_of_its_own_and_the_error_keeps_its_last_lines(launch: Launch, folder: Path) -> None:
    source = "import os, sys; print('attempt', os.environ['TORCHELASTIC_RESTART_COUNT'], file=sys.stderr); sys.exit(3)"
    _, words = finish(launch(source, "--log-dir", "logs", "--redirects", "3", "--max-restarts", "1"), 3)
    assert {name: text for name, text in read_logs(folder / "logs").items() if "stderr" in name} == {
        "attempt_0/0/stderr.log": "attempt 0\n",
        "attempt_1/0/stderr.log": "attempt 1\n",
    }
    assert "    attempt 1" in words


def test_a_full_disk_is_said_once_and_lines_are_still_shown() -> None:
    relay = output.Relay()
    ours, theirs = os.pipe()
    relay.add(ours, 1, log_fd=os.open("/dev/full", os.O_WRONLY))
    for number in range(2):
        os.write(theirs, f"line {number}\n".encode())
        relay.take_rest(ours)
        assert bytes(relay._waiting[1]) == b"".join(f"line {line}\n".encode() for line in range(number + 1))
    assert relay._waiting[2].count(b"No space left on device") == 1
    relay._waiting = {1: bytearray(), 2: bytearray()}
    os.close(theirs)
    relay.drain(1)


def test_a_folder_that_cannot_be_made_ends_the_launch(launch: Launch, folder: Path) -> None:
    (folder / "logs").touch()
    _, words = finish(launch("print(1)", "--log-dir", "logs"), 2)
    assert "--log-dir 'logs' cannot be used: Not a directory. Name a folder that you may write to." in words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--tee", "4"],
            "--tee takes 0 .nothing., 1 .stdout., 2 .stderr. or 3 .both., or one of these for each of the ranks",
        ),
        (["--redirects", "0:1,0:2"], "--redirects names rank 0 twice: '0:1,0:2'"),
        (["--redirects", "7:1"], "--redirects takes .* but received '7:1'"),
        (["-r", "1,2"], "--redirects takes .* but received '1,2'"),
        (["--local-ranks-filter", "2"], "--local-ranks-filter takes ranks from 0 to 1, such as 0,1, but received '2'"),
        (["--no-python"], "there is no program 'script.py' .looked in PATH."),
    ],
)
def test_what_is_said_of_output_is_understood(options, message, folder, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "script.py").touch()
    assert main.main(["run", "--workers", "2", *options, "script.py"]) == 2
    assert_matches(capsys.readouterr().err, message)


def test_a_program_that_is_no_python_runs(folder: Path) -> None:
    command_line = [sys.executable, "-m", "hocket", "run", "--workers", "2", "--no-python"]
    done = subprocess.run(
        [*command_line, "sh", "-c", 'echo $RANK of $WORLD_SIZE, $0, $1; test "$1" = one', "zero", "one"],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    assert sorted(done.stdout.splitlines()) == ["0 of 2, zero, one", "1 of 2, zero, one"]


@pytest.mark.slow
@pytest.mark.parametrize("asked", ['"gloo"', "", '"cpu:gloo"'])
@pytest.mark.parametrize("loaded_late", [False, True])
def test_scripts_that_ask_for_gloo_get_our_collectives(launch: Launch, asked: str, loaded_late: bool) -> None:
    late = 'os.environ["OMP_NUM_THREADS"] = "1"' if loaded_late else ""
    source = f"""
        import os
        {late}
        import torch
        import torch.distributed as dist
        dist.init_process_group({asked})
        total = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(total)
        pair = dist.new_group([0, 1])
        dist.all_reduce(total, group=pair)
        if dist.get_rank() == 0:
            kind = type(dist.distributed_c10d._get_default_group()).__module__
            print(total.item(), "hocket" in dist.get_backend(), dist.get_backend(pair), kind)
        dist.destroy_process_group()
    """
    out, _ = finish(launch(source, "--workers", "2", "--backend", "hocket"))
    total, is_ours, _, _ = out.split()
    assert (total, is_ours) == ("6.0", "True")


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "hocket", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("hocket ")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_lines_of_two_ranks_stay_whole(launch: Launch, monkeypatch: pytest.MonkeyPatch, unbuffered: str) -> None:
    """Containers often set PYTHONUNBUFFERED, with which Python writes a line and its end one after the other."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    source = """
        import os, sys
        for number in range(1500):
            print(os.environ["RANK"], number, "x" * 60)
            print(os.environ["RANK"], number, "y" * 60, file=sys.stderr)
    """
    out, err = finish(launch(source, "--workers", "2"))
    for text, letter in ((out, "x"), (err, "y")):
        expected = [f"{rank} {number} {letter * 60}" for rank in (0, 1) for number in range(1500)]
        assert sorted(text.splitlines()) == sorted(expected)


def test_ranks_that_go_on_after_others_have_ended_are_told_of(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RUN_NOTICE_S", "0.2")
    source = """
        import os, sys, threading
        if os.environ["RANK"] == "1":
            threading.Event().wait()
    """
    process = launch(source, "--workers", "2")
    assert process.stderr is not None
    words = process.stderr.readline()
    assert re.search(
        r"rank 0 ended 0 s ago, but rank 1 \(pid \d+\) is still running\. .*stop the launch with Ctrl-C or SIGTERM",
        words,
    )
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_a_rank_that_had_failed_when_it_was_asked_to_end_keeps_its_exit_code(launch: Launch, tmp_path: Path) -> None:
    source = f"""
        import atexit, os, sys, time
        flag = {str(tmp_path / "flag")!r}
        if os.environ["RANK"] == "0":
            atexit.register(lambda: (open(flag, "w").close(), time.sleep(60)))
            sys.exit(3)
        while not os.path.exists(flag):
            time.sleep(0.01)
        sys.exit(4)
    """
    _, err = finish(launch(source, "--workers", "2"), 3)
    assert "rank 0 of 2 failed first: it exited with code 3" in err


@pytest.mark.slow
@pytest.mark.parametrize("loaded_late", [False, True])
def test_a_group_of_gloo_is_never_destroyed(launch: Launch, loaded_late: bool) -> None:
    """Else the process may wait for gloo's thread while that waits for the interpreter's lock, which it has."""
    late = 'os.environ["OMP_NUM_THREADS"] = "1"' if loaded_late else ""
    source = f"""
        import gc, os, pathlib
        {late}
        import torch
        import torch.distributed as dist

        def count():
            names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
            return sum(name.startswith("pt_gloo_runloop") for name in names)

        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        model(torch.rand(8, 3)).sum().backward()
        before = count()
        dist.destroy_process_group()
        del model
        gc.collect()
        print(before > 0, count() == before)
    """
    out, _ = finish(launch(source, "--workers", "2"))
    assert out.splitlines() == ["True True"] * 2
