# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# open_mpi.sh: makes Open MPI send by libfabric over soft-RoCE, as root. Source it; `over_libfabric`
# has options of mpirun.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# soft-RoCE has no completion queue of the length that libfabric requests by default.
export FI_UNIVERSE_SIZE=4 FI_OFI_RXM_MSG_TX_SIZE=64 FI_OFI_RXM_MSG_RX_SIZE=64 FI_OFI_RXM_TX_SIZE=128 \
	FI_OFI_RXM_RX_SIZE=128 FI_VERBS_TX_SIZE=64 FI_VERBS_RX_SIZE=64
# shellcheck disable=SC2034 # the sourcing script uses it
over_libfabric=(--map-by :OVERSUBSCRIBE --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm')
