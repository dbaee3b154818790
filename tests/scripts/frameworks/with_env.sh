#!/bin/sh
# A program that is not Python: it reads its rank itself, then becomes one that adds up.
echo "a shell has rank $DISTLAUNCH_RANK of $DISTLAUNCH_WORLD_SIZE"
exec "${SUM_PYTHON:-python3}" "$(dirname "$0")/with_env.py" "$@"
