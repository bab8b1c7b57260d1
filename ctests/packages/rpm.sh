#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# rpm.sh: the RPM packages are built, rpmlint reports no error, and unpacked they run.
. "$(dirname "$0")/../lib/script.sh"
cd "$(dirname "$0")/../.." || exit 1

needs rpmbuild
unset MAKEFLAGS MAKELEVEL
check "make rpm" env -u MAINTAINER make -s --no-print-directory rpm
tap_done
