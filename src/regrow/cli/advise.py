"""`regrow checkpoint advise`: when to save, on paper."""

import click
import msgspec

from regrow.cli.amounts import bytes_per_s, count, seconds, share
from regrow.cli.gauge import size
from regrow.cli.interval_words import small, why
from regrow.cli.wording import plural, span
from regrow.core.advice import BYTES_PER_PARAM, Advice, Question, advise
from regrow.core.errors import ConfigError

_FORMAT = 1


class Advised(msgspec.Struct, frozen=True, kw_only=True):
    """What `advise` prints with --json."""

    format: int = _FORMAT
    advice: Advice


@click.command("advise")
@click.option("--params", required=True, metavar="N", help="How many parameters the model has, e.g. 7e9 or 7B.")
@click.option("--replicas", type=click.IntRange(min=1), required=True, metavar="N", help="Each copies a share of the state.")
@click.option("--mtbf", required=True, metavar="TIME", help="The mean time between losses of all replicas, e.g. 3h.")
@click.option("--bandwidth", required=True, metavar="RATE", help="At which the job writes to the place, e.g. 5GB/s.")
@click.option(
    "--bytes-per-param",
    type=click.FloatRange(min=0, min_open=True),
    default=BYTES_PER_PARAM,
    show_default=True,
    help="Of state. 12: weights and two moments of AdamW in 32 bits.",
)
@click.option(
    "--copy-bandwidth", default="10GB/s", show_default=True, metavar="RATE", help="At which a replica copies into memory."
)
@click.option("--restart", default="2min", show_default=True, metavar="TIME", help="From a loss until the job trains again.")
@click.option("--overhead", default="1%", show_default=True, metavar="SHARE", help="Saves are to cost no more than this.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def advise_(
    params: str,
    replicas: int,
    mtbf: str,
    bandwidth: str,
    bytes_per_param: float,
    copy_bandwidth: str,
    restart: str,
    overhead: str,
    as_json: bool,
) -> None:
    """When to save a job that does not run yet: the interval of each tier, what it costs, and what a loss costs.

    By the rules by which `regrow run` chooses the intervals of tiers on auto, where it measures what is computed here. A
    copy is taken to stop training for as long as it takes, though it runs beside it.
    """
    try:
        question = Question(
            params=count("--params", params),
            replicas=replicas,
            mtbf_s=seconds("--mtbf", mtbf),
            bytes_per_s=bytes_per_s("--bandwidth", bandwidth),
            bytes_per_param=bytes_per_param,
            copy_bytes_per_s=bytes_per_s("--copy-bandwidth", copy_bandwidth),
            restart_s=seconds("--restart", restart),
            overhead=share("--overhead", overhead),
        )
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    found = advise(question)
    if as_json:
        click.echo(msgspec.json.encode(Advised(advice=found)).decode())
    else:
        _print(found)


def _print(found: Advice) -> None:
    question = found.question
    click.echo(
        f"{question.params / 1e9:.3g} billion parameters of {question.bytes_per_param:g} bytes: {size(found.size_bytes)}, "
        f"copied by {plural(question.replicas, 'replica')}; everything is lost once in {span(question.mtbf_s)}, and back in "
        f"{span(question.restart_s)}"
    )
    titles = ("tier", "interval", "a save costs", "durable in", "overhead", "redone after a loss", "effective")
    rows = [titles]
    for tier in found.tiers:
        toil = tier.interval.toil
        rows.append(
            (
                tier.where,
                span(tier.interval.seconds),
                span(toil.cost_s),
                span(toil.durable_s),
                small(tier.interval.share),
                span(tier.redone_s),
                f"{tier.effective * 100:.2f} %",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for tier in found.tiers:
        click.echo(f"{tier.where}: {why(tier.interval)}")
    click.echo("effective: the share of time in which the job gets on, where this tier answers every loss")
