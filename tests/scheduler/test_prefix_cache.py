from engine.scheduler.prefix_cache import ROOT, PrefixCache


def insert_chain(cache: PrefixCache, contents: list[bytes], blocks: list[int]) -> None:
    entry = ROOT
    for content, block in zip(contents, blocks, strict=True):
        entry, _ = cache.insert(entry, content, block)


def test_the_longest_known_beginning_is_found() -> None:
    cache = PrefixCache()
    insert_chain(cache, [b"a", b"b", b"c"], [5, 6, 7])
    assert cache.match([b"a", b"b", b"x"]) == [5, 6]
    assert cache.match([b"b"]) == []
    assert cache.match([]) == []


def test_equal_blocks_behind_different_beginnings_are_different() -> None:
    cache = PrefixCache()
    insert_chain(cache, [b"x", b"b"], [1, 2])
    insert_chain(cache, [b"y"], [3])
    assert cache.match([b"y", b"b"]) == [3]


def test_the_first_of_two_equal_blocks_stays_and_the_chain_goes_on_from_it() -> None:
    cache = PrefixCache()
    entry, inserted = cache.insert(ROOT, b"a", 1)
    assert inserted
    assert cache.insert(ROOT, b"a", 2) == (entry, False)
    assert cache.match([b"a"]) == [1]


def test_contents_with_equal_hashes_are_told_apart() -> None:
    class Colliding(bytes):
        def __hash__(self) -> int:
            return 1

    cache = PrefixCache()
    insert_chain(cache, [Colliding(b"a")], [1])
    assert cache.match([Colliding(b"b")]) == []
    assert cache.match([Colliding(b"a")]) == [1]


def test_an_entry_whose_beginning_was_forgotten_is_not_found_even_when_the_beginning_returns() -> None:
    cache = PrefixCache()
    insert_chain(cache, [b"a", b"b"], [1, 2])
    cache.forget(1)
    assert cache.match([b"a", b"b"]) == []
    insert_chain(cache, [b"a"], [3])
    assert cache.match([b"a", b"b"]) == [3]
    cache.forget(2)
    cache.forget(3)
    assert len(cache) == 0
