/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory windows over the library's regions: the providers look into the region's object to bind
 * them.
 */
#include "../lib/pair.h"

static struct pair pair;
static struct ibv_mr *source, *mr;
static char *local, *remote;

static int bind_window(struct ibv_mw *mw, uint32_t *rkey)
{
	struct ibv_mw_bind_info info = {
		.mr = mr,
		.addr = (uintptr_t)remote + 64,
		.length = 128,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	struct ibv_wc wc;

	if (mw->type == IBV_MW_TYPE_1) {
		struct ibv_mw_bind request = { .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
		int err = ibv_bind_mw(pair.peer, mw, &request);

		*rkey = mw->rkey;
		if (err)
			return -1;
	} else {
		struct ibv_send_wr *bad, request = {
			.opcode = IBV_WR_BIND_MW,
			.send_flags = IBV_SEND_SIGNALED,
			.bind_mw = { .mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = info },
		};

		*rkey = request.bind_mw.rkey;
		if (ibv_post_send(pair.peer, &request, &bad))
			return -1;
	}
	for (int tries = 0; tries < 50000; tries++) {
		if (ibv_poll_cq(pair.cq, 1, &wc) == 1)
			return wc.status;
		usleep(100);
	}
	return -1;
}

static void window(const char *name, enum ibv_mw_type type)
{
	uint64_t at = (uintptr_t)remote + 64;
	struct ibv_mw *mw;
	uint32_t rkey;
	int err;

	mr = ibv_reg_mr(pair.pd, remote, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	mw = ibv_alloc_mw(pair.pd, type);
	must(mr && mw);
	is(bind_window(mw, &rkey), IBV_WC_SUCCESS, "%s: bound to the library's region", name);
	memset(local, 0x5a, 128);
	is(pair_write(&pair, source, local, 128, at, rkey), IBV_WC_SUCCESS, "%s: written through", name);
	ok(!memcmp(local, remote + 64, 128), "%s: the data", name);

	err = ibv_dereg_mr(mr);
	ok(err > 0, "%s: its region is not deregistered while it is bound (%s)", name, strerrorname_np(err));
	if (rdmamr_last_reason)
		ok(strstr(rdmamr_last_reason(), "memory window") != NULL, "%s: the reason says so", name);
	memset(local, 0x33, 128);
	is(pair_write(&pair, source, local, 128, at, rkey), IBV_WC_SUCCESS, "%s: and stays usable", name);
	ok(remote[64] == 0x33, "%s: the data of that", name);

	is(ibv_dealloc_mw(mw), 0, "%s: deallocated", name);
	is(ibv_dereg_mr(mr), 0, "%s: now the region is deregistered", name);
}

int main(void)
{
	local = pages(1);
	remote = pages(1);
	pair_open(&pair);
	if (pair.iwarp)
		skip_all("siw has no memory windows");
	source = ibv_reg_mr(pair.pd, local, PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(source);
	window("type 1", IBV_MW_TYPE_1);
	window("type 2", IBV_MW_TYPE_2);
	must(ibv_dereg_mr(source) == 0);
	pair_close(&pair);
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
