"""The command `hocket run`: an ordinary torchrun script on several processes of this machine.

Four kinds of process. The *front* is what the user started: it checks the request, passes signals on, and waits. The
*agent* is a fresh interpreter with nothing of the user's in it: it loads torch once if the script is going to, forks
the ranks, relays what they write, and ends everything. A *rank* is such a fork, in which the script runs as `__main__`
and nothing of ours is left to see. The *store* is another fork, which the ranks ask to find each other.

- `command`: the front.
- `plan`: what is to be run; the one message from the front to the agent.
- `imports`: whether the script is going to load torch, by reading it.
- `backend`: the name of our backend, for scripts that want it; `store` serves what the ranks meet in.
- `agent`: the agent's loop; `output` relays, `report` finds the words for a failure.
- `rank`: what a fork does to become the script.
"""
