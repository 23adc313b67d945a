"""The command `regrow`. Each subcommand has a file of its own; none of them imports torch."""

import click

from regrow.cli.check import check
from regrow.cli.checkpoint import checkpoint
from regrow.cli.coordinator import coordinator
from regrow.cli.neighbour import neighbour
from regrow.cli.run import run
from regrow.cli.soak import soak
from regrow.cli.status import status
from regrow.cli.why import why
from regrow.cli.wishes import leave, migrate, scale


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="regrow")
def main() -> None:
    """Fault-tolerant, elastic training for PyTorch.

    Kill anything: the final weights are, bit for bit, those of an undisturbed run.
    """


main.add_command(run)
main.add_command(coordinator)
main.add_command(neighbour)
main.add_command(status)
main.add_command(check)
main.add_command(checkpoint)
main.add_command(why)
main.add_command(soak)
main.add_command(scale)
main.add_command(leave)
main.add_command(migrate)

if __name__ == "__main__":
    main()
