"""JAAS configs as Java reads them."""

from __future__ import annotations

import pytest
from shoal.security.jaas import JaasError, LoginModule, parse

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("M required;", {}),
        (
            'M required user_alice="secret" user_bob=other;',
            {"user_alice": "secret", "user_bob": "other"},
        ),
        ("M required a='x;y' b='say \"hi\"';", {"a": "x;y", "b": 'say "hi"'}),
        (
            r'M required a="q\"uote" b="back\\slash" c="\101\7\t\x";',
            {"a": 'q"uote', "b": "back\\slash", "c": "A\a\tx"},
        ),
        ("M Required\n  a=b // to the end\n /* many\n lines */ c=d;", {"a": "b", "c": "d"}),
        ('M REQUIRED "odd name"="v" user_a.b-c$="w";', {"odd name": "v", "user_a.b-c$": "w"}),
        ("M optional a=é\u4e2d b=x;", {"a": "é\u4e2d", "b": "x"}),
        ('M requisite a="http://h:1/x?y=z#1";', {"a": "http://h:1/x?y=z#1"}),
        ('M sufficient a="" a="last";', {"a": "last"}),
        ('M required a="1" b= "2" c ="3" d = "4";', {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ('M required a="x" / a comment to the end of the line\n;', {"a": "x"}),
        ('M required a="two\\\nlines";', {"a": "two\nlines"}),
    ],
)
def test_options(text: str, options: dict[str, str]) -> None:
    assert parse(text).options == options


def test_the_module_and_its_flag() -> None:
    assert parse(f'  {PLAIN} Required user_a="b";\n') == LoginModule(
        PLAIN, "required", {"user_a": "b"}
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Login module not specified"),
        ("  // nothing\n", "Login module not specified"),
        ("M", "control flag not specified"),
        ("M;", "control flag is not available"),
        ("M 1;", "control flag is not available"),
        ("M must a=b;", "Invalid login module control flag 'must'"),
        ("; required;", "does not begin with the class"),
        ("M required", "not terminated by semi-colon"),
        ('M required a="b"', "not terminated by semi-colon"),
        ("M required a;", "Value not specified for key 'a'"),
        ("M required a=;", "Value not specified for key 'a'"),
        ("M required a=123;", "Value not specified for key 'a'"),
        ("M required a=-b;", "Value not specified for key 'a'"),
        ("M required a b=c;", "Value not specified for key 'a'"),
        ("M required a", "Value not specified for key 'a'"),
        ("M required password=hush!;", "after option 'password'"),
        ("M required =b;", "after the control flag"),
        ("M required a=b; N required;", "contains 2 login modules"),
    ],
)
def test_errors_name_the_problem(text: str, problem: str) -> None:
    with pytest.raises(JaasError, match=problem) as raised:
        parse(text)
    assert "hush" not in str(raised.value)


def test_no_repr_shows_a_password() -> None:
    assert "secret" not in repr(parse(f'{PLAIN} required user_a="secret";'))


def test_a_long_config_takes_linear_time() -> None:
    assert len(parse("M required " + 50_000 * 'a="/*\\"*/"' + ";").options) == 1
    with pytest.raises(JaasError):
        parse("M required " + "/*" + 500_000 * "*")
