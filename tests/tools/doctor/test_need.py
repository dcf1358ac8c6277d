"""The input that a run needs, and the changes that meet it."""

from largebatch.tools.doctor import need as needs


def test_the_need_of_a_time_and_of_devices():
    assert needs.need_in_time(samples=1_200_000, target_s=60, hosts=4).images_per_s == 5000
    assert needs.need_of_devices(2500.0, 8, hosts=4).images_per_s == 20_000


def test_cores_and_hosts_that_meet_the_need():
    need = needs.need_in_time(1_200_000, 60, hosts=4)  # 5,000 images/s each
    assert needs.cores_needed(need, given=800, cores=2) == 13  # 12.5
    found = [needs.hosts_needed(need, given=given) for given in (799, 800, 801)]
    assert found == [26, 25, 25]


def test_advice_names_the_changes_that_suffice():
    need = needs.need_in_time(1_200_000, 60, hosts=4)
    words = needs.advice(need, 800, 2)
    for found in ("0.16", "13 cores", "25 hosts"):
        assert found in words
    assert "cores" not in needs.advice(need, 5000, 2)
    assert "hosts instead" not in needs.advice(needs.need_of_devices(10, 8, 4), 20, 2)
