"""No test of this folder depends on the machine that runs it."""

from tests.support.machine import any_machine, whole_machine

__all__ = ["any_machine", "whole_machine"]
