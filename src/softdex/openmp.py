"""Let idle OpenMP threads sleep soon. Import before torch, which reads the setting when loaded.

By default, waiting threads spin. Beside any other busy process this makes training over 20 times
slower (measured on 2 cores); on an idle machine, threads that sleep at once make it 3 times slower.
A short spin avoids both. A wait policy set by the user is kept.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
