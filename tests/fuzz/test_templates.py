"""Templates with a cost: a text or a DataError of one line, in time, and no memory to speak of in this process.

A failing case is its seed and number: `drawn(seed, number)` writes the same template again. Limits are smaller than
those of users, so that many cases can pass them; what happens when one is passed does not depend on how large it is.
"""

import dataclasses
import os
import random
import resource
import time
from pathlib import Path

import pytest

from gradloom.base.errors import DataError
from gradloom.llm import template_process
from gradloom.llm.chat import ChatTemplate
from gradloom.llm.tokenizer import Tokenizer
from tests.fuzz.limits import memory, reset_peak
from tests.llm.chats import CHAT, CHATML
from tests.llm.small_tokenizers import byte_bpe

CASES = int(os.environ.get("FUZZ_CASES", "100"))  # more of them: FUZZ_CASES=100000, in parts: FUZZ_FIRST=20000
FIRST = int(os.environ.get("FUZZ_FIRST", "0"))
LIMITS = dataclasses.replace(template_process.LIMITS, seconds=0.1, silence=6000.0, memory=64 << 20, length=200_000)
NUMBERS = [0, 1, 2, 3, 3, 7, 7, 10, 10, 40, 99, 1000, 20_000]
LARGE = ["-1", "99999", "10**5", "10**6", "10**7", "10**9", "2**31", "2**63", "10**20", "10**400"]
WORDS = ["x", "", "ab ", "a\\n", "é", "\U0001f600", "<|im_end|>", "\ud800", "{{", "%"]
MARKS = "{% generation %}", "{% endgeneration %}"


class Draw(random.Random):
    """Expressions and statements of a template, from those that cost most."""

    def number(self):
        return self.choice(LARGE) if self.random() < 0.08 else str(self.choice(NUMBERS))

    def text(self, depth=2):
        n = self.number
        if depth <= 0 or self.random() < 0.2:
            return self.choice([f"'{self.choice(WORDS)}'", "messages[0].content", "ns.x", "t", "bos_token"])
        a, b = self.text(depth - 1), self.text(depth - 1)
        return self.choice([
            f"({a} ~ {b})", f"({a} * {n()})", f"({n()} * {a})", f"({a}).center({n()})", f"({a}).ljust({n()})",
            f"({a}).rjust({n()}, 'y')", f"({a}).zfill({n()})", f"({a} | center({n()}))", f"({a} | indent({n()}, true))",
            f"({a} | wordwrap({n()} + 1))", f"({a}).replace('', {b})", f"({a} | replace('x', {b}))",
            f"({b}).join({self.list(depth - 1)})", f"({self.list(depth - 1)} | join({a}))",
            f"('%{n()}d' % 7)", f"('%.{n()}f' % 0.5)", f"('%*d' % ({n()}, 7))", f"('%s' | format({a}))",
            f"('{{:>{n()}}}'.format(7))", f"('{{0:{{1}}}}'.format({a}, {n()}))", f"({a}).expandtabs({n()})",
            f"lipsum(n={n()}, min=1, max={n()} + 2, html=false)", f"({self.list(depth - 1)} | tojson(indent={n()}))",
            f"(messages | tojson(indent={n()}))", f"({a} | upper | trim | title | escape | urlize)",
            f"({self.list(depth - 1)} | pprint)", f"({self.value(depth - 1)} | string)", f"({a})[::-1]",
            f"({a} | truncate({n()}))", f"({a}).translate({{120: {b}}})", f"({a} | xmlattr)" if depth < 0 else f"({a})",
            f"strftime_now('%{n()}Y' ~ {a})", f"m({self.choice([0, 1, 3, 9, 17, 99])})", f"({a} | urlencode)",
        ])  # fmt: skip

    def list(self, depth=2):
        n = self.number
        if depth <= 0 or self.random() < 0.3:
            return self.choice(["messages", "[1, 2]", f"range({n()})", "ns.l", f"[{self.text(0)}]"])
        a = self.list(depth - 1)
        return self.choice([
            f"(({a} | list) * {n()})", f"({a} | list + {a} | list)", f"({a} | batch({n()}, 'y') | list)",
            f"({a} | slice({n()}) | list)", f"({self.text(depth - 1)} | list)", f"({self.text(depth - 1)}).split('x')",
            f"({a} | map('string') | list)", f"({a} | map('center', {n()}) | list)", f"({a} | sort)",
            f"({a} | unique | list)", f"({a} | reverse | list)", f"({self.text(depth - 1)}).splitlines()",
            f"({a} | select('divisibleby', 3) | list)", f"range({n()}, {n()}, {n()})", f"({a} | list)[:{n()}]",
            f"dict(a={a}) | items | list", f"({a} | groupby(0) | list)", f"({a} | sum(start=[]))",
        ])  # fmt: skip

    def value(self, depth=2):
        n = self.number
        if depth <= 0 or self.random() < 0.3:
            return n()
        a = self.value(depth - 1)
        return self.choice([
            f"({a} ** {n()})", f"({a} * {a})", f"({a} ** {a})", f"({a} // ({n()} + 1))",
            f"({self.list(depth - 1)} | length)",
            f"({self.text(depth - 1)} | int)", f"({self.text(depth - 1)}).count('x')", f"({a} | round({n()}))",
            f"({self.text(depth - 1)} in {self.text(depth - 1)})", f"({self.list(depth - 1)} | sum)",
            f"({a} | filesizeformat)",
            f"({a} | abs | float)", f"({self.list(depth - 1)} == {self.list(depth - 1)})", f"({a} % ({n()} + 1))",
        ])  # fmt: skip

    def statement(self, depth):
        if depth <= 0 or self.random() < 0.25:
            return f"{{{{ {self.choice([self.text, self.text, self.list, self.value])()} }}}}"
        body = "".join(self.statement(depth - 1) for _ in range(self.choice([1, 1, 2])))
        return self.choice([
            f"{{% for a in {self.list()} %}}{body}{{% endfor %}}",
            f"{{% for a in range({self.number()}) %}}{body}{{% endfor %}}",
            f"{{% for a in range({self.choice([3, 9, 30, 60])}) %}}{{% set ns.x = ns.x ~ ns.x %}}{{% endfor %}}",
            f"{{% for a in range({self.choice([3, 9, 30, 60])}) %}}{{% set ns.l = ns.l + ns.l %}}{{% endfor %}}",
            f"{{% for a in [1, 2] recursive %}}{{{{ loop([1, 2]) if loop.depth < {self.number()} }}}}{{% endfor %}}",
            f"{{% for a in [1] recursive %}}{body}{{{{ loop(messages) if loop.depth0 < 9 }}}}{{% endfor %}}",
            f"{{% if {self.value()} %}}{body}{{% else %}}{self.statement(depth - 1)}{{% endif %}}",
            f"{{% set t %}}{body}{{% endset %}}{body}", f"{{% set ns.x = {self.text()} %}}",
            f"{MARKS[0]}{body}{MARKS[1]}",
            f"{{% filter indent({self.number()}) %}}{body}{{% endfilter %}}", f"{{% set t = {self.text()} %}}{body}",
            f"{{% call m({self.number()}) %}}{body}{{% endcall %}}", f"{{% set range = {self.list()} %}}{body}",
            f"{{% macro m(k, t='x') %}}{body}{{{{ m(k - 1) ~ m(k - 1) if k > 0 }}}}{{% endmacro %}}{{{{ m(7) }}}}",
            f"{{% macro f() %}}{body}{{{{ caller() if caller }}}}{{{{ f() }}}}{{% endmacro %}}{{{{ f() }}}}",
            f"{{% with t = {self.text()} %}}{body}{{% endwith %}}", f"{{% raw %}}{body}", "{% block b %}" + body,
            f"{{% block b %}}{body}{{{{ self.b() }}}}{{% endblock %}}", f"{{{{ raise_exception({self.text()}) }}}}",
            f"{{% set joiner = {self.text()} %}}{body}", "{% include 'x' %}", "{{ self }}", "{% continue %}",
        ])  # fmt: skip


def drawn(seed, number):
    """Case `number` of `seed`: a template."""
    draw = Draw(f"{seed} {number}")
    head = "{% set ns = namespace(x='ab', l=[1, 2]) %}{% set t = 'ab' %}{% macro m(k) %}{{ k }}{% endmacro %}"
    head += "{% set _turn_of_a_loop = namespace %}" if draw.random() < 0.1 else ""
    body = "".join(draw.statement(3) for _ in range(draw.choice([1, 1, 2])))
    return draw.choice(["", CHATML]) + head + body + draw.choice(["", CHATML])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc to measure the memory of a process")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_templates_with_a_cost(monkeypatch, seed):
    monkeypatch.setattr(template_process, "LIMITS", LIMITS)
    tokenizer = Tokenizer(byte_bpe(["t h"]))
    kept = ChatTemplate(CHATML, tokenizer)  # one process for all of them, as long as it lives
    whole, passed, slowest = 0, {"processor time": 0, "MiB of memory": 0, "its text passes": 0}, 0.0
    kept._renderer._process.end()  # it may have served other tests, with more memory
    held = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    for number in range(FIRST, FIRST + CASES // 2):
        source, case = drawn(seed, number), f"seed {seed}, case {number}"
        reset_peak()
        before, began = memory("VmRSS"), time.process_time()
        try:
            parts = ChatTemplate(source, tokenizer, "model.gguf").parts(CHAT)
            assert [flag for _, flag in parts] == [i % 2 == 1 for i in range(len(parts))], case
            whole += 1
        except DataError as error:
            shown = str(error)
            assert "\n" not in shown and shown.startswith("model.gguf: chat template") and len(shown) < 1100, case
            assert "its process" not in shown, f"{case}: {shown}"  # neither a crash nor nonsense
            for reason in passed:
                passed[reason] += reason in shown
        except Exception as error:
            raise AssertionError(f"{case}: {error!r}") from error
        grown = memory("VmHWM") - before
        assert grown < 20 * len(source.encode("utf-8", "surrogatepass")) + (8 << 20), f"{case}: {grown} bytes"
        slowest = max(slowest, time.process_time() - began)
        assert slowest < 10, case  # of this process; the other one has its limit
        if number % 100 == 0:
            assert kept.parts(CHAT)[1] == ("Hello! <|im_end|>", True), case
    del kept
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    assert most <= max(held, 64 + 100), f"a process took {most} MiB"  # the interpreter and jinja2 take 40 of them
    print(
        f"\nseed {seed}: {CASES // 2} cases from {FIRST}, {whole} whole; {passed}; slowest {slowest:.2f} s;"
        f" process {most:.0f} MiB"
    )
    assert 0 < whole < CASES // 2 and any(passed.values())
