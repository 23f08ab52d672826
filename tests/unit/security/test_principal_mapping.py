"""Subjects of certificates and the rules that map them to users, beside what
`tests/compat/oracles/test_principal_names.py` compares with Kafka."""

from __future__ import annotations

import time

import pytest
from shoal.security.principal_mapping import SUBJECT_SIZE_MAX, PrincipalMapper
from support.runs.conditions import fits_cpu

#: A rule as in Kafka's documentation. Python's engine takes a time that grows with the cube of the
#: subject: twenty minutes for the one below.
RULE = "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?)$/$1@$3/L"
CPU_S_MAX = 0.1


def test_a_long_subject_takes_no_time() -> None:
    mapper = PrincipalMapper(f"{RULE},DEFAULT")
    subject = "CN=" + ",OU=,O=" * 5_000 + ",L"
    began = time.thread_time()
    assert mapper.map_subject(subject) == subject
    assert fits_cpu(time.thread_time() - began, CPU_S_MAX)
    assert mapper.map_subject("CN=Ann,OU=x,O=Example,L=here") == "ann@example"


def test_a_pattern_with_a_look_ahead_is_for_short_subjects() -> None:
    mapper = PrincipalMapper("RULE:^CN=(?!root)(.*?),O=(.*)$/$1/,DEFAULT")
    assert mapper.map_subject("CN=ann,O=Example") == "ann"
    assert mapper.map_subject("CN=root,O=Example") == "CN=root,O=Example"
    with pytest.raises(ValueError, match="too long for the pattern"):
        mapper.map_subject("CN=" + "a" * SUBJECT_SIZE_MAX + ",O=Example")
