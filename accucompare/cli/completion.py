"""The command `completion`."""

from __future__ import annotations

import click

from accucompare.cli.group import ASKS, PASS, cli
from accucompare.cli.help import examples


@cli.command(
    epilog=examples(
        "accucompare completion bash > ~/.local/share/bash-completion/completions/accucompare",
        'accucompare completion zsh > "${fpath[1]}/_accucompare"',
        "accucompare completion fish > ~/.config/fish/completions/accucompare.fish",
        "",
        "Then start a new shell. For bash, the package bash-completion is needed; without it, add",
        '`eval "$(accucompare completion bash)"` to ~/.bashrc. For zsh, `compinit` must run in'
        " ~/.zshrc.",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the script that completes commands, options and their values with the Tab key."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "accucompare", ASKS).source())
    return PASS
