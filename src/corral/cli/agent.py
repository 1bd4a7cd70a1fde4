"""`corral agent`: the agent's own commands, as `corral-agent` has them."""

from __future__ import annotations

import click


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def agent(arguments: tuple[str, ...]) -> int:
    """The program on a machine: `corral agent join`, `run`, `status`. `corral agent --help` says more."""
    from corral.agent import main

    try:
        return main.main(list(arguments))
    except SystemExit as done:  # argparse's own way out
        return done.code if isinstance(done.code, int) else 0 if done.code is None else 1
