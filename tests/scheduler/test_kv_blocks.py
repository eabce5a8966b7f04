import pytest

from engine.scheduler.kv_blocks import BlockPool, OutOfBlocksError


def make_pool(num_blocks: int = 4) -> tuple[BlockPool, list[int]]:
    evicted: list[int] = []
    return BlockPool(num_blocks, on_evict=evicted.append), evicted


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_active, pool.num_cached


def retained(pool: BlockPool, count: int) -> list[int]:
    blocks = pool.allocate(count)
    for block in blocks:
        pool.retain(block)
    return blocks


def test_a_released_block_is_free_unless_it_is_retained() -> None:
    pool, _ = make_pool()
    a, b = pool.allocate(2)
    pool.retain(a)
    assert counts(pool) == (2, 2, 0)
    pool.release([a, b])
    assert counts(pool) == (3, 0, 1)
    assert pool.is_cached(a)
    assert not pool.is_cached(b)


def test_a_shared_block_stays_active_until_its_last_user_goes() -> None:
    pool, _ = make_pool()
    blocks = pool.allocate(1)
    pool.acquire(blocks)
    pool.release(blocks)
    assert counts(pool) == (3, 1, 0)
    pool.release(blocks)
    assert counts(pool) == (4, 0, 0)


def test_free_blocks_are_used_up_before_a_cached_one_is_evicted() -> None:
    pool, evicted = make_pool()
    pool.release(retained(pool, 1))
    pool.allocate(3)
    assert evicted == []
    pool.allocate(1)
    assert len(evicted) == pool.evicted == 1


def test_the_least_recently_used_block_is_evicted_first() -> None:
    pool, evicted = make_pool(3)
    a, b, c = retained(pool, 3)
    pool.release([a, b, c])
    pool.acquire([a])
    pool.release([a])
    pool.allocate(2)
    assert evicted == [b, c]


def test_a_block_in_use_is_never_evicted() -> None:
    pool, evicted = make_pool(2)
    a, b = retained(pool, 2)
    pool.release([a, b])
    pool.acquire([a])
    assert pool.available == 1
    with pytest.raises(OutOfBlocksError):
        pool.allocate(2)
    assert pool.allocate(1) == [b] == evicted


def test_an_evicted_block_is_not_retained_by_its_next_user() -> None:
    pool, _ = make_pool(1)
    pool.release(retained(pool, 1))
    pool.release(pool.allocate(1))
    assert counts(pool) == (1, 0, 0)


def test_a_refused_allocation_takes_nothing() -> None:
    pool, _ = make_pool(2)
    pool.allocate(1)
    with pytest.raises(OutOfBlocksError):
        pool.allocate(2)
    assert counts(pool) == (1, 1, 0)
    assert pool.problem() == ""


def test_the_audit_names_leaked_and_lost_blocks() -> None:
    pool, _ = make_pool(2)
    pool.allocate(1)
    assert "nobody is running" in pool.problem(idle=True)
    pool._free.clear()
    assert "!= pool 2" in pool.problem()
