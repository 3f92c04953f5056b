"""Watching a process: alarms told, metrics, health, traces. Nothing here is on the way of a mail but counters.

Everything runs on connections of its own, survives the store's absence, and is put together by the entry points.
"""
