"""Health: what is unusual in telemetry, whose fault it is, which runs will fail, what goes wrong.

`anomalies` scores samples, `causes` ranks who is to blame for a window of time, `kinds` says what
sort of fault it was, `failures` foresees how runs end, `trouble` watches what runs now. Nothing
here reads a file or a clock, and nothing acts on what it finds.
"""
