"""The rules that policy files compose. Pure: they see the core and nothing else.

One module is one rule: it has exactly one public class, ``Rule``, a frozen struct whose fields
are its parameters, and the module's name is the rule's name.
"""
