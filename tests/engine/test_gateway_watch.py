from engine.gateway_watch import GatewayWatch


def test_a_later_gateway_makes_earlier_ones_stale_whoever_says_so() -> None:
    watch = GatewayWatch()
    watch.directory_says(1)
    assert watch.accepts(1)
    assert watch.accepts(2)
    assert not watch.accepts(1)
    watch.directory_says(3)
    assert not watch.accepts(2)


def test_a_directory_that_is_older_than_a_message_changes_nothing() -> None:
    watch = GatewayWatch()
    assert watch.accepts(2)
    watch.directory_says(1)
    assert watch.accepts(2)
    assert watch.dead_up_to == 1


def test_no_gateway_makes_all_heard_of_stale_and_saying_it_twice_changes_nothing() -> None:
    watch = GatewayWatch()
    watch.directory_says(0)
    assert watch.accepts(1)
    watch.directory_says(0)
    watch.directory_says(0)
    assert not watch.accepts(1)
    assert watch.accepts(2)
