/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * nodes [--own | --version]: the fi_getinfo that the linker finds by each version node of libfabric is the library's,
 * which calls libfabric's of that node. Then the monitor in a program that has imported another before.
 */
#include "../../lib/tap.h"
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>

typedef int getinfo(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);

static const char *home(void *address)
{
	Dl_info about;

	return address && dladdr(address, &about) ? about.dli_fname : "nowhere";
}

/* In each of a monitor's functions' places: nobody calls them. */
static int nothing(void) { return 0; }

static void import_own(void)
{
	static struct fi_ops_mem_monitor functions = {
		.size = sizeof(functions), .start = (void *)nothing, .stop = (void *)nothing,
		.subscribe = (void *)nothing, .unsubscribe = (void *)nothing, .valid = (void *)nothing,
	};
	static struct fid_mem_monitor own = { .fid.fclass = FI_CLASS_MEM_MONITOR, .export_ops = &functions };
	struct fid *cache;

	must(fi_open(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &cache, NULL) == 0);
	must(fi_import_fid(cache, &own.fid, 0) == 0);
	must(fi_close(cache) == 0);
}

int main(int argc, char **argv)
{
	static const char *const nodes[] = { "1.0", "1.1", "1.2", "1.3", "1.7", "1.8", "1.9" };
	void *libfabric = dlopen("libfabric.so.1", RTLD_NOW | RTLD_NOLOAD);
	struct fi_info *hints = fi_allocinfo();

	must(libfabric && hints);
	if (argc > 1 && !strcmp(argv[1], "--version"))
		return printf("%u.%u\n", FI_MAJOR(fi_version()), FI_MINOR(fi_version())) < 0;
	if (argc > 1 && !strcmp(argv[1], "--own"))
		import_own();
	hints->fabric_attr->prov_name = strdup("tcp");
	for (size_t n = 0; n < sizeof(nodes) / sizeof(nodes[0]); n++) {
		char node[16];
		void *found;

		snprintf(node, sizeof(node), "FABRIC_%s", nodes[n]);
		if (!dlvsym(libfabric, "fi_getinfo", node)) {
			skip(node, "this libfabric has no such node");
			continue;
		}
		found = dlvsym(RTLD_DEFAULT, "fi_getinfo", node);
		ok(!strcmp(home(found), home(dlsym(RTLD_DEFAULT, "rdmamr_version"))), "fi_getinfo of %s is the library's", node);
		/* A call that fails early, in each version alike. */
		is(((getinfo *)found)(FI_VERSION(99, 0), NULL, NULL, 0, NULL, (struct fi_info **)hints), -FI_ENOSYS,
		   "and calls libfabric's");
	}
	ok(strstr(home(dlsym(RTLD_DEFAULT, "fi_getinfo")), "libfabric") != NULL, "without a node it is libfabric's");
	fi_freeinfo(hints);
	return done_testing();
}
