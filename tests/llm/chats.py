"""Chat templates of known models, small chats, and tokenizers for them."""

from gradloom.llm.tokenizer import Tokenizer
from tests.llm.small_tokenizers import byte_bpe, spm

CHATML = (  # SmolLM2
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = """{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must take turns: user, assistant, user, ...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}"""
# as Qwen3 does: thoughts of earlier turns are dropped, the last turn always has some
QWEN3 = """{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- set content = m.content %}
    {%- if m.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}
        {{- content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
# as Mistral's later templates do: the system's words go into the last user's turn, so that no prefix of a chat is one
LAST_USER = """{{- bos_token }}
{%- for m in messages if m.role != 'system' %}
    {%- if m.role == 'user' %}
        {{- '[INST] ' }}
        {%- if loop.last or loop.index0 == loop.length - 2 %}{{- messages[0].content + '\\n\\n' }}{% endif %}
        {{- m.content + '[/INST]' }}
    {%- else %}{{- ' ' + m.content + eos_token }}{% endif %}
{%- endfor %}"""
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}"
PHI3 = (  # closes the whole text with another token
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
SYSTEM = {"role": "system", "content": "Be brief."}
CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello! "},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "It is 4."},
]


def chatml(**keys):
    return Tokenizer(byte_bpe(["H i", "i t"], **keys), "model.gguf")


def llama3():
    control = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>")
    return Tokenizer(byte_bpe(control=control, pre="llama-bpe"))


def phi3():
    return Tokenizer(byte_bpe(control=("<|assistant|>", "<|user|>", "<|end|>", "<|endoftext|>")))


def mistral():
    return Tokenizer(spm(["\u2581", "\u2581H", "H", "el"]))


# -- the templates of more families ------------------------------------------------------------------------------------

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for message in rest %}"
    "{% if loop.index0 == 0 and system %}{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message['content']"
    " %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else"
    " message['role'] %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for message in messages %}\n{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}"
)
DEEPSEEK = (  # of the distilled models of R1: thoughts are left out of earlier turns
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '<｜User｜>' + message['content'] }}{% elif message['content'] is not none %}{% set content ="
    " message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)


def gemma():
    control = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
    keys = spm(["\u2581", "el"], control, bos_token_id=2, eos_token_id=1, unknown_token_id=3, add_space_prefix=False)
    return Tokenizer(keys)


def zephyr():
    return Tokenizer(spm(["\u2581", "<|", "|>"]))


def deepseek():
    control = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
    tokenizer = byte_bpe(control=control)
    tokenizer["tokenizer.ggml.eos_token_id"] = tokenizer["tokenizer.ggml.bos_token_id"] + 1
    return Tokenizer(tokenizer)
