"""The command `hocket run`: an ordinary torchrun script on several processes of this machine.

There are four kinds of process. The *front* is the process that the user started: it checks the request, passes signals
on, and waits. The *agent* is a fresh interpreter without anything of the user's: it loads torch once if the script will
need it, forks the ranks, relays their output, and ends everything. A *rank* is such a fork; the script runs in it as
`__main__`, and sees nothing of Hocket's. The *store* is another fork, through which the ranks find each other.

- `command`: the front.
- `plan`: the work to do; the only message from the front to the agent.
- `imports`: reads the script to find out whether it will load torch.
- `backend`: the name of Hocket's backend, for scripts that want it; `store` serves the store of the ranks.
- `agent`: the agent's loop; `output` relays output, `report` describes a failure.
- `rank`: the steps by which a fork becomes the script.
"""
