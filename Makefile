# Thin wrappers around cargo and tools/. `make help` lists what there is.

PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
# mount(8) looks for its helpers in /sbin only, which is /usr/sbin: PREFIX=/usr for that.
SBINDIR ?= $(PREFIX)/sbin
DATADIR ?= $(PREFIX)/share
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
UNITDIR ?= $(LIBDIR)/systemd/system

TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release/selvedge
RUN_LIBRARY := $(TARGET)/release/libselvedge_run.so
LIBRARY := $(TARGET)/release/libselvedge.a
PG_LIBRARY := $(TARGET)/release/libselvedge-pg
SQLITE_LIBRARY := $(TARGET)/release/libselvedge-sqlite.so
# Built with the tests: optimised, and with every assertion on.
CHECKED := $(TARGET)/debug/selvedge
HELPERS := mkfs.selvedge fsck.selvedge fsck.fuse.selvedge mount.selvedge mount.fuse.selvedge umount.fuse.selvedge

CARGO ?= cargo
# rustup puts cargo here, and only login shells have the directory in their path.
export PATH := $(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
.PHONY: help build build-c install-c build-pg install-pg build-sqlite install-sqlite demo docs test test-full lint unit suites suites-bpfs suites-others bench cases cases-test cases-explore memcached memcached-test memcached-bench openldap openldap-test openldap-bench install install-unit uninstall need-build need-mount

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

need-build:
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev
	@command -v $(CARGO) >/dev/null || { \
	  echo "Missing: cargo. Selvedge needs Rust 1.95 or later; install it with rustup (see rustup.rs)." >&2; exit 1; }

# Root mounts without fusermount3; fuse3 serves everyone else.
need-mount:
	@tools/need mountpoint:util-linux fusermount3:fuse3 kill:procps tar:tar cmp:diffutils
	@[ -e /dev/fuse ] || modprobe fuse 2>/dev/null || { \
	  echo "Missing: /dev/fuse. Load the kernel module fuse, or pass the device to this container." >&2; exit 1; }
	@[ -w /dev/fuse ] || { echo "No access to /dev/fuse: run as root, or let root 'chmod 666 /dev/fuse'." >&2; exit 1; }

build: need-build ## build target/release/selvedge, and the library of selvedge run
	@$(CARGO) build --release --locked -p selvedge -p selvedge-preload

build-c: need-build ## build target/release/libselvedge.a and .so
	@$(CARGO) build --release --locked -p selvedge-capi

build-pg: ## build target/release/libselvedge-pg.a and .so, with a C compiler only
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev
	@$(MAKE) --no-print-directory $(PG_LIBRARY).a $(PG_LIBRARY).so

build-sqlite: ## build target/release/libselvedge-sqlite.so, an extension of SQLite
	@tools/need cc:gcc /usr/include/stdio.h:libc6-dev /usr/include/sqlite3ext.h:libsqlite3-dev
	@$(MAKE) --no-print-directory $(SQLITE_LIBRARY)

demo: build need-mount ## unpack, build, cut the power, look: about a minute
	@SELVEDGE=$(abspath $(RELEASE)) tools/demo

docs: need-build ## build the documents as one book in target/book
	@book=$$(tools/crate-tool mdbook) && "$$book" build docs

lint: need-build
	@tools/need shellcheck:shellcheck python3:python3
	tools/prose --test
	tools/prose
	tools/check-links
	tools/long-files
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings
	$(CARGO) check --quiet --locked --workspace # the libraries and programs without seeded bugs
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --locked --workspace --no-deps
	shellcheck .ci/run $(shell grep -slE '^#!.*\<(ba)?sh\>' tools/* tools/*/* tools/*/*/*)

unit: need-build need-mount
	@tools/need gcc:gcc g++:g++ strip:binutils sparse:sparse valgrind:valgrind python3:python3 e2fsck:e2fsprogs sfdisk:fdisk sgdisk:gdisk \
	  /usr/include/sqlite3ext.h:libsqlite3-dev strace:strace git:git
	@tools/unit-tests

suites: need-build need-mount # each keeps a client and a server busy, by turns
	@$(CARGO) test --quiet --locked --workspace --features selvedge-crash/seeded-bugs --no-run # already done by unit, as a rule
	@$(MAKE) --no-print-directory --jobs=2 suites-bpfs suites-others

suites-bpfs:
	@SELVEDGE=$(abspath $(CHECKED)) FSX_OPERATIONS=30000 tools/suites bpfs

suites-others:
	@SELVEDGE=$(abspath $(CHECKED)) FSX_OPERATIONS=10000 tools/suites soupfs fsx pjdfstest kill
	@SELVEDGE=$(abspath $(CHECKED)) FSX_OPERATIONS=10000 tools/suites pxfs fsx pjdfstest
	@SELVEDGE=$(abspath $(CHECKED)) FSX_OPERATIONS=10000 tools/suites ext2 fsx pjdfstest kernel
	@SELVEDGE=$(abspath $(CHECKED)) FSX_OPERATIONS=10000 tools/suites ext2:journal fsx pjdfstest

test: ## formatting, lints, unit tests, crash states, published suites on a mount
	@tools/test-steps lint unit suites

test-full: test ## as test, and what takes longer
	@SELVEDGE=$(abspath $(CHECKED)) tools/test-full

bench: build need-mount ## measure; tables and plots land in target/bench
	@tools/need postmark:postmark python3:python3 cc:gcc losetup:mount mkfs.ext4:e2fsprogs pkg-config:pkg-config /usr/include/fuse3/fuse.h:libfuse3-dev \
	  /usr/include/db.h:libdb5.3-dev /usr/include/lmdb.h:liblmdb-dev /usr/include/sqlite3.h:libsqlite3-dev \
	  /usr/include/rocksdb/c.h:librocksdb-dev /usr/include/libpmemobj.h:libpmemobj-dev /usr/include/tcbdb.h:libtokyocabinet-dev
	$(RELEASE) bench all $(TARGET)/bench

cases: build need-mount ## measure real programs with fsync, order and patchgroups; tables land in target/cases
	@SELVEDGE=$(abspath $(RELEASE)) tools/cases/run

cases-test: build need-mount ## cut the power under real programs, and check what they left
	@SELVEDGE=$(abspath $(RELEASE)) tools/cases/test

cases-explore: build need-mount ## show the checks of real programs the states that a crash could leave
	@SELVEDGE=$(abspath $(RELEASE)) tools/cases/explore

memcached: need-build ## build Debian's memcached with its items in durable memory
	@tools/memcached/build

memcached-test: need-build ## build it, and test it
	@tools/memcached/test

memcached-bench: need-build ## build it, and measure it beside the one it is made from and Berkeley DB
	@tools/memcached/test bench

openldap: need-build ## build a module for Debian's slapd that keeps a database in durable memory
	@tools/openldap/build

openldap-test: need-build ## build it, and test it
	@tools/openldap/test

openldap-bench: need-build ## build it, and measure it beside back-mdb
	@tools/openldap/test bench

# Builds only what is missing, so that `make build && sudo make install` needs no cargo
# in root's path.
$(RELEASE) $(RUN_LIBRARY):
	@$(MAKE) --no-print-directory build

install: $(RELEASE) $(RUN_LIBRARY) ## install under PREFIX (default /usr/local), honours DESTDIR
	install -D -m 755 $(RELEASE) $(DESTDIR)$(BINDIR)/selvedge
	install -D -m 755 $(RUN_LIBRARY) $(DESTDIR)$(LIBDIR)/libselvedge_run.so
	install -d $(DESTDIR)$(SBINDIR) $(DESTDIR)$(DATADIR)/man/man8
	for helper in $(HELPERS); do ln -sf $(BINDIR)/selvedge $(DESTDIR)$(SBINDIR)/$$helper || exit 1; done
	$(RELEASE) manpages $(DESTDIR)$(DATADIR)/man/man8
	install -d $(DESTDIR)$(DATADIR)/bash-completion/completions $(DESTDIR)$(DATADIR)/zsh/site-functions \
	  $(DESTDIR)$(DATADIR)/fish/vendor_completions.d
	$(RELEASE) completions bash >$(DESTDIR)$(DATADIR)/bash-completion/completions/selvedge
	$(RELEASE) completions zsh >$(DESTDIR)$(DATADIR)/zsh/site-functions/_selvedge
	$(RELEASE) completions fish >$(DESTDIR)$(DATADIR)/fish/vendor_completions.d/selvedge.fish
	@$(MAKE) --no-print-directory install-unit

UNIT := selvedge-serve@.service

install-unit: # a service of systemd for each image
	install -d $(DESTDIR)$(UNITDIR)
	sed 's|@BINDIR@|$(BINDIR)|' crates/cli/$(UNIT).in >$(DESTDIR)$(UNITDIR)/$(UNIT)

CAPI := crates/capi
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

$(LIBRARY):
	@$(MAKE) --no-print-directory build-c

# The loader finds new libraries in its cache. In another root, that is the packager's task.
REFRESH = if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then /sbin/ldconfig; fi

install-c: $(LIBRARY) ## install the C library, its headers and linker script, as install does
	install -D -m 644 $(LIBRARY) $(DESTDIR)$(LIBDIR)/libselvedge.a
	install -D -m 755 $(TARGET)/release/libselvedge.so $(DESTDIR)$(LIBDIR)/libselvedge.so.0
	ln -sf libselvedge.so.0 $(DESTDIR)$(LIBDIR)/libselvedge.so
	install -d $(DESTDIR)$(INCLUDEDIR)/selvedge $(DESTDIR)$(LIBDIR)/pkgconfig
	install -m 644 $(CAPI)/include/selvedge.h $(CAPI)/include/selvedge.ld $(DESTDIR)$(INCLUDEDIR)
	install -m 644 $(CAPI)/include/selvedge/*.h $(DESTDIR)$(INCLUDEDIR)/selvedge
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	  -e 's|@VERSION@|$(VERSION)|' $(CAPI)/selvedge.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/selvedge.pc
	@$(REFRESH)

PG := crates/pg
PG_CALLS := depend engage disengage sync barrier order close
PG_CC = $(CC) -std=c99 -Wall -Wextra -O2 $(CFLAGS) -fPIC -I $(PG)/include

$(PG_LIBRARY).so: $(PG)/c/patchgroup.c $(PG)/include/selvedge/patchgroup.h
	@mkdir -p $(@D)
	$(PG_CC) $(LDFLAGS) -shared -Wl,-soname,libselvedge-pg.so.0 -o $@ $<

$(PG_LIBRARY).a: $(PG)/c/patchgroup.c $(PG)/include/selvedge/patchgroup.h
	@mkdir -p $(@D)
	$(PG_CC) -c -o $(PG_LIBRARY).o $<
	rm -f $@ && $(AR) rcs $@ $(PG_LIBRARY).o

install-pg: build-pg ## install the C library for patchgroups, its header and manual, as install does
	install -D -m 644 $(PG_LIBRARY).a $(DESTDIR)$(LIBDIR)/libselvedge-pg.a
	install -D -m 755 $(PG_LIBRARY).so $(DESTDIR)$(LIBDIR)/libselvedge-pg.so.0
	ln -sf libselvedge-pg.so.0 $(DESTDIR)$(LIBDIR)/libselvedge-pg.so
	install -D -m 644 $(PG)/include/selvedge/patchgroup.h $(DESTDIR)$(INCLUDEDIR)/selvedge/patchgroup.h
	install -D -m 644 $(PG)/include/selvedge/checker.h $(DESTDIR)$(INCLUDEDIR)/selvedge/checker.h
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(DATADIR)/man/man3
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	  -e 's|@VERSION@|$(VERSION)|' $(PG)/selvedge-pg.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/selvedge-pg.pc
	install -m 644 $(PG)/man/pg_create.3 $(DESTDIR)$(DATADIR)/man/man3
	for call in $(PG_CALLS); do \
	  echo '.so man3/pg_create.3' >$(DESTDIR)$(DATADIR)/man/man3/pg_$$call.3 || exit 1; done
	@$(REFRESH)

# The extension contains the calls of libselvedge-pg.
$(SQLITE_LIBRARY): $(PG)/c/sqlite_order.c $(PG)/c/patchgroup.c $(PG)/include/selvedge/patchgroup.h
	@mkdir -p $(@D)
	$(PG_CC) $(LDFLAGS) -shared -pthread -fvisibility=hidden -o $@ $(filter %.c,$^)

install-sqlite: build-sqlite ## install the extension of SQLite, as install does
	install -D -m 755 $(SQLITE_LIBRARY) $(DESTDIR)$(LIBDIR)/libselvedge-sqlite.so
	@$(REFRESH)

uninstall: ## remove what install, install-c, install-pg and install-sqlite put there
	rm -f $(DESTDIR)$(LIBDIR)/libselvedge-sqlite.so $(DESTDIR)$(LIBDIR)/libselvedge_run.so
	rm -f $(DESTDIR)$(LIBDIR)/libselvedge-pg.a $(DESTDIR)$(LIBDIR)/libselvedge-pg.so* \
	  $(DESTDIR)$(LIBDIR)/pkgconfig/selvedge-pg.pc $(DESTDIR)$(DATADIR)/man/man3/pg_create.3 \
	  $(foreach call,$(PG_CALLS),$(DESTDIR)$(DATADIR)/man/man3/pg_$(call).3)
	rm -f $(DESTDIR)$(LIBDIR)/libselvedge.a $(DESTDIR)$(LIBDIR)/libselvedge.so* \
	  $(DESTDIR)$(LIBDIR)/pkgconfig/selvedge.pc $(DESTDIR)$(INCLUDEDIR)/selvedge.h \
	  $(DESTDIR)$(INCLUDEDIR)/selvedge.ld
	rm -rf $(DESTDIR)$(INCLUDEDIR)/selvedge
	rm -f $(DESTDIR)$(UNITDIR)/$(UNIT)
	rm -f $(DESTDIR)$(BINDIR)/selvedge $(addprefix $(DESTDIR)$(SBINDIR)/,$(HELPERS))
	rm -f $(DESTDIR)$(DATADIR)/man/man8/selvedge*.8 \
	  $(DESTDIR)$(DATADIR)/bash-completion/completions/selvedge \
	  $(DESTDIR)$(DATADIR)/zsh/site-functions/_selvedge \
	  $(DESTDIR)$(DATADIR)/fish/vendor_completions.d/selvedge.fish
