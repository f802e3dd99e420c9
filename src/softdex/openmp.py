"""Idle threads soon sleep. Imported before torch, whose thread pool reads this when it is loaded.

By default OpenMP threads spin while they wait, which makes training over 20 times slower beside
any other busy process (seen on 2 cores); threads that sleep at once cost an idle machine 3 times.
A short spin costs neither. A setting of the user's own is left alone.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
