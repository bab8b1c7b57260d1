#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# fabric_prototypes.sh OUTPUT.c: writes a C file that has libfabric's inline functions beside the
# library's functions of the same names, and asserts that their types are equal.
set -eu
{
	echo '/* Made by ctests/packages/abi/fabric_prototypes.sh: our prototypes against those of the installed headers. */'
	echo '#include <rdma/fi_domain.h>'
	echo '#include <rdma/fi_eq.h>'
	perl -0777 -ne '
		while (/^((?:const )?\w+ \*?)(fi_\w+)(\([^;]*\));/mg) {
			print "$1ours_$2$3;\n";
			print "_Static_assert(__builtin_types_compatible_p(__typeof__($2), __typeof__(ours_$2)), \"$2\");\n";
		}' include/rdmamr/fi_mr.h
} >"$1"
