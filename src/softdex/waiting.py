"""Idle threads sleep. Imported before torch, whose thread pool reads this when it is loaded.

By default OpenMP threads spin while they wait; beside any other busy process that makes training
many times slower (20 times, seen on 2 cores). A setting of the user's own is left alone.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
