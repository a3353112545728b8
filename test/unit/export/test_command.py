"""`specpack export` on small checkouts: commits or a refusal, never half of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specpack import cli
from specpack.seams import CONTINUE, Addition, Attribute, Guard, Patch

from .conftest import HEADS, make_patch

TEST = "unit/spec/test_heads.py"
TEST_TEXT = "import torch\nfrom sglang.srt import heads\n\nprint(torch, heads)\n"


def gate(head: Any) -> Any:
    """Admit two."""
    if head == 2:
        return True
    return CONTINUE


def helper(head: int) -> int:
    """Help."""
    return head


@pytest.fixture
def patches(library: Any) -> tuple[Patch, ...]:
    """Three patches; the second requires the first and shares a test with it."""
    fits = Guard(
        target="sglang.srt.heads:gate",
        function=gate,
        fingerprints=library.prints("gate"),
    )
    new = Addition(target="sglang.srt.heads:helper", function=helper)
    names = Attribute(target="sglang.srt.heads:Model.names", value=[])
    return (
        make_patch("new", new, tests=(TEST,)),
        make_patch("gate", fits, requires=("new",), tests=(TEST,)),
        make_patch("names", names),
    )


@pytest.fixture
def export(
    library: Any,
    patches: tuple[Patch, ...],
    use: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    """Runs `specpack export` on the library's checkout, and gives what it prints."""
    use(*patches)
    library.commit()
    test = tmp_path / "registered" / TEST
    test.parent.mkdir(parents=True)
    test.write_text(TEST_TEXT)

    def export(*options: str) -> tuple[int, str]:
        code = cli.main(["export", str(library.top), *options])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return export


def state(library: Any) -> tuple[str, ...]:
    """All that an export may change in a checkout."""
    files = sorted(library.top.rglob("*.py"))
    return (
        library.git("status", "--porcelain", "--branch"),
        library.git("for-each-ref"),
        *(f"{file}: {file.read_text()}" for file in files),
    )


def subjects(library: Any) -> list[str]:
    return library.git("log", "--reverse", "--format=%s").splitlines()


def test_one_commit_for_each_patch_in_order(library: Any, export: Any) -> None:
    code, out = export()
    assert (code, out.splitlines()[-1][:12]) == (0, "3 commits on")
    expected = ["base", "[Spec] Mend new", "[Spec] Mend gate", "[Spec] Mend names"]
    assert subjects(library) == expected
    assert library.git("status", "--porcelain", "--branch") == "## specpack"
    assert library.git("rev-parse", "specpack~3") == library.git("rev-parse", "main")
    changed = library.git("diff", "--name-only", "main", "specpack").split()
    assert changed == ["python/sglang/srt/heads.py", f"test/registered/{TEST}"]
    assert "specpack" not in library.git("diff", "main", "specpack")


def test_a_body_in_the_order_of_the_template(library: Any, export: Any) -> None:
    export()
    body = library.git("log", "-1", "--format=%b", "specpack~1")
    titles = [
        "Motivation\n----------\nWhat gate mends.\n\nRelated: #1.",
        "Modifications\n-------------\n- `gate` in `sglang.srt.heads`: Admit two.",
        "Accuracy Tests\n",
        "Speed Tests and Profiling\n",
        f"Checklist\n---------\n- [x] Formatted as .pre-commit-config.yaml asks\n"
        f"- [x] Unit tests: test/registered/{TEST}\n",
    ]
    places = [body.index(title) for title in titles]
    assert places == sorted(places)


def test_a_test_travels_with_the_last_patch_it_tests(library: Any, export: Any) -> None:
    export()
    path = f"test/registered/{TEST}"
    assert library.git("log", "--format=%s", "--", path) == "[Spec] Mend gate"
    # To SGLang's isort, sglang is the first party.
    assert "import torch\n\nfrom sglang" in (library.top / path).read_text()


def test_twice_gives_the_same(library: Any, export: Any) -> None:
    export()
    before = state(library)
    assert export() == (0, "specpack has these 3 commits already\n")
    assert state(library) == before
    library.git("checkout", "--quiet", "main")
    export("--branch", "again")
    trees = [library.git("rev-parse", f"{b}^{{tree}}") for b in ("specpack", "again")]
    assert trees[0] == trees[1]


def test_an_older_export_is_replaced(library: Any, export: Any) -> None:
    export("--only", "names")
    export()
    assert len(subjects(library)) == 4


def test_only_brings_what_it_requires(library: Any, export: Any) -> None:
    export("--only", "gate")
    assert subjects(library) == ["base", "[Spec] Mend new", "[Spec] Mend gate"]


def test_a_test_of_a_patch_not_chosen_stays_behind(library: Any, export: Any) -> None:
    _, out = export("--only", "new")
    assert f"{TEST} stays behind: it also tests gate" in out
    assert not (library.top / "test").exists()


def test_a_patch_that_is_already_there_is_skipped(
    library: Any, export: Any, use: Any, patches: tuple[Patch, ...]
) -> None:
    library.write("srt.heads", HEADS.replace("return False", "return 0"))
    library.git("commit", "--quiet", "--all", "-m", "upstream")
    use(*patches, fixed=("gate",))
    code, out = export()
    assert code == 0 and "gate is already there: skipped" in out
    assert subjects(library)[2:] == ["[Spec] Mend new", "[Spec] Mend names"]


def test_a_test_that_is_there_is_not_overwritten(library: Any, export: Any) -> None:
    theirs = library.top / "test" / "registered" / TEST
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs = 1\n")
    assert export()[0] == 0
    assert theirs.read_text() == "theirs = 1\n"
    assert "heads" in theirs.with_name("test_heads_gate.py").read_text()


def refused(library: Any, export: Any, *options: str) -> str:
    """What the refusal says; nothing may have changed."""
    before = state(library)
    code, out = export(*options)
    assert code == 1 and out.startswith("specpack export: ")
    assert state(library) == before
    return out.removeprefix("specpack export: ")


def test_a_drifted_seam_is_named_with_what_was_found(library: Any, export: Any) -> None:
    library.write("srt.heads", HEADS.replace("return False", "return 0"))
    library.git("commit", "--quiet", "--all", "-m", "upstream")
    out = refused(library, export)
    assert "gate: drifted" in out and "sglang.srt.heads:gate has changed" in out
    assert "            return 0\n" in out


def test_what_changed_upstream_is_shown(
    library: Any, export: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verified = type(library)(tmp_path / "verified").tree
    monkeypatch.setattr("specpack.export.drift.installed", lambda: verified)
    library.write("srt.heads", HEADS.replace("return False", "return 0"))
    library.git("commit", "--quiet", "--all", "-m", "upstream")
    out = refused(library, export)
    assert "-        return False\n" in out and "+        return 0\n" in out


def test_a_dirty_checkout_is_left_alone(library: Any, export: Any) -> None:
    library.write("srt.base", "class Base:\n    x = 1\n")
    out = refused(library, export)
    assert out.count("\n") == 1 and "python/sglang/srt/base.py" in out


def test_a_branch_with_other_commits_is_left_alone(library: Any, export: Any) -> None:
    library.git("checkout", "--quiet", "-b", "specpack")
    library.git("commit", "--quiet", "--allow-empty", "-m", "theirs")
    library.git("checkout", "--quiet", "main")
    assert "--branch" in refused(library, export)


def test_an_unknown_patch_is_answered_with_the_known(library: Any, export: Any) -> None:
    assert "There are: new, gate, names." in refused(library, export, "--only", "newer")


def test_a_folder_without_sglang_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "is not a SGLang tree" in err and err.count("\n") == 1


def test_a_tree_inside_another_checkout_is_refused(
    library: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    library.commit()
    outer = library.top / "python"
    assert cli.main(["export", str(outer)]) == 1
    assert "not its top" in capsys.readouterr().err


def test_a_tree_without_git_is_refused(
    library: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(library.top.parent))
    assert cli.main(["export", str(library.top)]) == 1
    assert "not a git checkout" in capsys.readouterr().err


def test_verify_accepts_an_export_and_names_what_differs(
    library: Any, export: Any
) -> None:
    export()
    code, out = export("--verify")
    assert code == 0 and "3 commits" in out
    text = (library.root / "srt" / "heads.py").read_text()
    library.write("srt.heads", text.replace("head == 2", "head == 3"))
    library.git("commit", "--quiet", "--all", "--amend", "--no-edit")
    code, out = export("--verify")
    assert code == 1 and "names: python/sglang/srt/heads.py differs" in out


def test_verify_refuses_a_tree_without_the_series(library: Any, export: Any) -> None:
    assert "no commit of the series" in refused(library, export, "--verify")
