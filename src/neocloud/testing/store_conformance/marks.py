"""Marks: numbers that end by themselves."""

from datetime import UTC, datetime, timedelta

from neocloud.core.store import Mark, Store

NOW = datetime(2026, 11, 22, tzinfo=UTC)
SPACE = "guesses"


class MarkConformance:
    async def test_a_mark_is_there_until_its_time(self, store: Store) -> None:
        mark = Mark(3, NOW + timedelta(minutes=1))
        await store.write(lambda tx: tx.put_mark(SPACE, "alice", mark))
        assert await store.read(lambda tx: tx.mark(SPACE, "alice", NOW)) == mark
        assert await store.read(lambda tx: tx.mark(SPACE, "alice", mark.until)) is None
        assert await store.read(lambda tx: tx.mark("other", "alice", NOW)) is None
        later = Mark(1, NOW + timedelta(hours=1))
        await store.write(lambda tx: tx.put_mark(SPACE, "alice", later))
        assert await store.read(lambda tx: tx.mark(SPACE, "alice", NOW)) == later
        await store.write(lambda tx: tx.remove_mark(SPACE, "alice"))
        assert await store.read(lambda tx: tx.count_marks(SPACE)) == 0

    async def test_marks_that_ended_are_forgotten(self, store: Store) -> None:
        for number in range(4):
            mark = Mark(1, NOW + timedelta(minutes=number))
            await store.write(lambda tx, name=str(number), mark=mark: tx.put_mark(SPACE, name, mark))
        await store.write(lambda tx: tx.put_mark("other", "0", Mark(1, NOW)))
        assert await store.write(lambda tx: tx.forget_marks(SPACE, NOW + timedelta(minutes=1))) == 2
        assert await store.read(lambda tx: (tx.count_marks(SPACE), tx.count_marks("other"))) == (2, 1)
        assert await store.write(lambda tx: tx.forget_ended_marks(NOW + timedelta(minutes=2))) == 2
        assert await store.read(lambda tx: (tx.count_marks(SPACE), tx.count_marks("other"))) == (1, 0)

    async def test_small_marks_make_room_and_large_ones_stay(self, store: Store) -> None:
        for number in range(6):
            mark = Mark(5 if number < 2 else 1, NOW + timedelta(minutes=number + 1))
            await store.write(lambda tx, name=str(number), mark=mark: tx.put_mark(SPACE, name, mark))
        assert await store.write(lambda tx: tx.forget_marks(SPACE, NOW, below=5, limit=3)) == 3
        assert await store.read(lambda tx: [tx.mark(SPACE, str(n), NOW) is not None for n in range(6)]) == [
            True, True, False, False, False, True,
        ]  # fmt: skip
