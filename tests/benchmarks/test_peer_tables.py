"""The tables of the comparison with peers say what was measured, and where."""

from benchmarks import peer_tables as page


def test_every_table_is_made_of_what_was_measured():
    assert "| **dpfed** |" in page.steps() and "Opacus" in page.steps() and "open_clip" in page.clip()
    assert "dpfed sampler" in page.sampling() and "dpfed, secure" in page.rounds()
    assert "torch.func takes" in page.faster() and "no privacy takes" not in page.faster()


def test_a_table_says_the_machine_and_which_column_where_there_are_several(monkeypatch):
    def said(*machines):
        cells = {
            f"small CNN, S = {size}, B = {batch}": {"cores": 1, "hardware": machine, "contenders": {}, "left_out": []}
            for size, batch, machine in machines
        }
        part = {"cells": cells, "packages": {}, "rounds": 2}
        monkeypatch.setattr(page, "figures", lambda _: {"step": part})
        return page.steps().splitlines()[-1]

    assert said((1, 256, "one"), (4, 1024, "one")).startswith("one. Medians")
    assert said((1, 256, "one"), (4, 256, "other"), (1, 1024, "one")).startswith(
        "B = 256: one or other; B = 1,024: one. Medians"
    )
