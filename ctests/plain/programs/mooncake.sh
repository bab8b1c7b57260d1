# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# mooncake.sh: lets Python find Mooncake's wheel (mooncake_wheel), and makes Mooncake run with few
# threads and little output. Source it. `gid` is the index of the RoCE GID, `work` a folder for
# Mooncake's files.
PYTHONPATH=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../../target/mooncake")
export PYTHONPATH MC_GID_INDEX=$gid MC_WORKERS_PER_CTX=1 MC_LOG_LEVEL=ERROR GLOG_minloglevel=2 HOME=$work
