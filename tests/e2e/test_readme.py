"""What the README tells people to type is what the package understands."""

import re
import shlex
from pathlib import Path

import pytest

from vaswani_transformer import cli

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(vaswani .*)$", "\n".join(re.findall(r"```bash\n(.*?)```", README, re.DOTALL)), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_is_understood(command):
    words = shlex.split(command, comments=True)[1:]
    assert cli.build_parser().parse_args(words).command == words[0]


def test_every_file_of_the_tree_in_the_readme_exists():
    tree = README.split("## The files")[1].split("```")[1]
    package = Path(cli.__file__).parent
    files = {path.name for path in package.rglob("*.py")}
    assert set(re.findall(r"\w+\.py", tree)) <= files
    assert all((package / name).is_dir() for name in re.findall(r"    (\w+)/ ", tree))
