from engine.scheduler.step_cost import StepCost


def test_a_prediction_before_any_measurement_is_generous() -> None:
    assert StepCost().predict_ns(512, 0) >= 5e9


def test_a_repeated_step_is_predicted_at_once() -> None:
    cost = StepCost()
    cost.learn(0, 4, 1_000_000)
    assert abs(cost.predict_ns(0, 4) - 1_000_000) < 10


def test_the_estimate_follows_constant_and_slopes() -> None:
    cost = StepCost()

    def truth(prefill: int, decode: int) -> int:
        return 5_000_000 + 40_000 * prefill + 100_000 * decode

    shapes = [(64, 0), (0, 1), (0, 16), (32, 8), (128, 2), (0, 32)]
    for _ in range(300):
        for shape in shapes:
            cost.learn(*shape, truth(*shape))
    for shape in shapes:
        assert abs(cost.predict_ns(*shape) / truth(*shape) - 1) < 0.25
