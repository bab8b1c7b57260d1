# SPDX-License-Identifier: MIT OR Apache-2.0
# A Spack package (Spack 1.0 and later). "packaging/recipes URL HOME" writes it to target/recipes
# with the address and the checksum of a release. Put your name on GitHub in maintainers. Spack itself could not be had on the machines of the tests:
# the suite "recipes" runs its build and its installation without Spack.
from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Rdmamr(MakefilePackage):
    """librdmamr takes over memory registration (ibv_reg_mr) in programs that use RDMA, without a
    change to them: it records the calls, says why one failed, and reuses released regions."""

    homepage = "@home@"
    url = "@url@/librdmamr-@version@.tar.gz"

    maintainers("MAINTAINER")

    license("MIT OR Apache-2.0")

    version("@version@", sha256="@sha256@")

    depends_on("c", type="build")
    depends_on("rust@@rust@:", type="build")
    # Rust's own lld serves, if the toolchain has it (rust-lld).
    depends_on("llvm +lld", type="build")
    depends_on("binutils", type="build")
    # The library finds libibverbs in the process.
    depends_on("rdma-core", type="run")

    conflicts("platform=darwin")
    conflicts("platform=windows")

    # No tests are built, and cargo fetches the crates of Cargo.lock.
    build_targets = ["all"]

    @property
    def install_targets(self):
        return [f"PREFIX={self.prefix}", "install"]

    def setup_build_environment(self, env):
        env.set("CARGO_HOME", f"{self.stage.path}/cargo")

    def setup_run_environment(self, env):
        env.set("RDMAMR_LIBRARY", f"{self.prefix.lib}/librdmamr.so.1")

    def test_version(self):
        """the program finds the library of its prefix"""
        rdmamr = Executable(self.prefix.bin.rdmamr)
        said = rdmamr("--version", output=str.split, error=str.split)
        assert f"rdmamr {self.version}" in said
        assert f"{self.prefix.lib}/librdmamr.so.1" in said

    def test_preload(self):
        """a program runs with the library in front"""
        rdmamr = Executable(self.prefix.bin.rdmamr)
        maps = rdmamr("run", "--", "cat", "/proc/self/maps", output=str.split, error=str.split)
        assert "librdmamr.so" in maps
