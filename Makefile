# ckksd: the front door. `make help` lists what it can do.
#
#   CC=gcc|clang   SANITIZER=address|undefined|thread|asan (address+undefined)   V=1 (show commands)   DEBUG=1
#   EMULATED=1 (the CUDA back end on an emulated card, for its tests)

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:

VERSION := 0.1.0

ifeq ($(origin CC),default)
CC := gcc
endif
CXX ?= g++
NVCC ?= $(shell command -v nvcc 2>/dev/null || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
PKG_CONFIG ?= pkg-config
PYTHON := /usr/bin/python3
SANITIZER ?=
DEBUG ?=
EMULATED ?=
Q := $(if $(V),,@)

# --- where things go: one folder per way of building, so that switching never mixes objects -------------------------
FLAVOUR := $(notdir $(CC))$(if $(SANITIZER),-$(SANITIZER))$(if $(DEBUG),-debug)$(if $(FUZZING),-fuzz)$(if $(EMULATED),-emulated)
B := build/$(FLAVOUR)
# What the emulated card does not change is taken from the build without it, which is there already.
SHARED := build/$(patsubst %-emulated,%,$(FLAVOUR))
OWN_SRC := daemon/main.c kernels/device.c tests/unit/test_device.c tests/unit/test_daemon_life.c
GEN := $(SHARED)/gen

comma := ,

# --- flags ----------------------------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Wshadow -Wconversion -Werror
OPT := $(if $(DEBUG),-O1 -DCKKS_DEBUG_BOUNDS,-O2)
# no contraction: the encoder's words are the same on every machine. DWARF 4: what valgrind can read of clang
CFLAGS_ALL := -std=c11 -D_GNU_SOURCE $(OPT) -g$(if $(findstring clang,$(CC)),dwarf-4) -pthread -fopenmp -ffp-contract=off -fno-strict-aliasing -fvisibility=hidden \
              -fstack-protector-strong -fPIC -I. -I$(GEN) -DCKKSD_VERSION='"$(VERSION)"' $(CFLAGS)
LDFLAGS_ALL := -pthread -fopenmp -Wl,--as-needed -Wl,-z,relro,-z,now $(LDFLAGS)
ifneq ($(SANITIZER),)
  SAN_LIST := $(if $(filter asan,$(SANITIZER)),address,$(SANITIZER))
  SAN_FLAGS := -fsanitize=$(SAN_LIST)$(if $(filter asan,$(SANITIZER)),$(comma)undefined) -fno-omit-frame-pointer
  ifeq ($(SANITIZER),asan)
    SAN_FLAGS := -fsanitize=address -fsanitize=undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
  endif
  # libFuzzer is blind without coverage counters in the code under test
  SAN_FLAGS += $(if $(FUZZING),-fsanitize=fuzzer-no-link)
  CFLAGS_ALL += $(SAN_FLAGS)
  LDFLAGS_ALL += $(SAN_FLAGS)
endif
# generated code is exempt from our warnings
CFLAGS_GEN = $(CFLAGS_ALL) -Wno-error -w

LIBS_KERNELS := -lsodium -lcrypto -lm -ldl
LIBS_PROTO := -lprotobuf-c
LIBS_CLIENT := -lnng -lz
LIBS_DAEMON = -lnng -luv -lmicrohttpd -lsqlite3 -linih $(if $(HAVE_SYSTEMD),-lsystemd)
HAVE_SYSTEMD := $(shell $(PKG_CONFIG) --exists libsystemd 2>/dev/null && echo 1)
ifneq ($(HAVE_SYSTEMD),)
  CFLAGS_ALL += -DHAVE_SYSTEMD
endif

# --- sources: a new file in one of these folders is built without touching this file ---------------------------------
KERNELS_SRC := $(sort $(wildcard kernels/*.c kernels/base/*.c kernels/scheme/*.c kernels/cpu/*.c kernels/evaluator/*.c \
                                 kernels/program/*.c))
PROTO_SRC := $(sort $(wildcard proto/*.c))
PROTO_GEN := $(patsubst proto/%.proto,$(GEN)/%.pb-c.c,$(sort $(wildcard proto/*.proto)))
CLIENT_SRC := $(sort $(wildcard client/lib/*.c))
COMPILE_SRC := $(sort $(wildcard client/compile/*.c))
CTL_SRC := $(sort $(wildcard client/ctl/*.c))
DAEMON_SRC := $(sort $(filter-out daemon/main.c,$(wildcard daemon/*.c)))
SUPPORT_SRC := $(sort $(wildcard tests/support/*.c))
UNIT_SRC := $(sort $(wildcard tests/unit/test_*.c))
CONFORMANCE_SRC := $(sort $(wildcard tests/conformance/test_*.c))
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))

obj = $(patsubst %.c,$(SHARED)/obj/%.o,$(1))
fault = $(foreach f,$(1),$(if $(filter $(OWN_SRC),$(f)),$(B),$(SHARED))/fault/$(f:.c=.o))
gen_obj := $(patsubst $(GEN)/%.c,$(SHARED)/obj/gen/%.o,$(PROTO_GEN))

# --- CUDA: compiled once, for the plain gcc build; sanitizer and clang builds are CPU-only, or have the emulated card ----
ifneq ($(EMULATED),)
  CUDA_TAG := emulated
  EMULATED_OBJ := $(patsubst kernels/cuda/%,$(B)/cuda/%.o,$(sort $(wildcard kernels/cuda/emulated/*.cpp)))
  CUDA_OBJ := $(patsubst kernels/cuda/%,$(B)/cuda/%.o,$(sort $(wildcard kernels/cuda/*.cu))) $(EMULATED_OBJ)
  CUDA_OBJ_FAULT := $(patsubst %/device_cuda.cu.o,%/device_cuda-fault.cu.o,$(CUDA_OBJ))
  CFLAGS_ALL += -DCKKSD_CUDA
  LIBS_KERNELS += -lstdc++
else ifneq ($(and $(NVCC),$(wildcard kernels/cuda/*.cu)),)
ifeq ($(SANITIZER)$(notdir $(CC)),gcc)
  CUDA_SRC := $(sort $(wildcard kernels/cuda/*.cu))
  # CUDA_ARCH: native = the card of this machine (90 where there is none); all = what a bundle for other machines carries
  CUDA_ARCH ?= native
  CUDA_NATIVE := $(or $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .),90)
  CUDA_TAG := $(if $(filter all,$(CUDA_ARCH)),all,$(CUDA_NATIVE))
  NVCC_ARCH := $(if $(filter all,$(CUDA_ARCH)),-gencode arch=compute_80$(comma)code=sm_80 -gencode arch=compute_89$(comma)code=sm_89 \
               -gencode arch=compute_90$(comma)code=sm_90 -gencode arch=compute_90$(comma)code=compute_90,-arch=sm_$(CUDA_NATIVE))
  CUDA_OBJ := $(patsubst kernels/cuda/%.cu,build/cuda-$(CUDA_TAG)/%.o,$(CUDA_SRC))
  # the kernels are the same; the back end can also break its card
  CUDA_OBJ_FAULT := $(patsubst %/device_cuda.o,%/device_cuda-fault.o,$(CUDA_OBJ))
  CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
  # no contraction: every fused multiply-add of the FP64 path is written out
  NVCC_FLAGS := -std=c++17 -O3 --fmad=false --threads 2 --compress-mode=size -I. -DCKKSD_CUDA $(NVCC_ARCH) \
                -Xcompiler -fPIC,-fvisibility=hidden,-Wall $(if $(DEBUG),-DCKKS_DEBUG_BOUNDS)
  CFLAGS_ALL += -DCKKSD_CUDA
  LIBS_KERNELS += -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -ldl -lrt
endif
endif

# --- what comes out ----------------------------------------------------------------------------------------------------
LIBCKKS := $(B)/libckks.a
LIBCKKS_FAULT := $(B)/libckks-fault.a
LIBPROTO := $(SHARED)/libckksproto.a
LIBCLIENT := $(SHARED)/libckksclient.a
LIBCLIENT_SO := $(B)/libckksclient.so
LIBCOMPILE := $(SHARED)/libckkscompile.a
LIBDAEMON := $(SHARED)/libckksdaemon.a
LIBSUPPORT := $(SHARED)/libsupport.a
CKKSD := $(B)/ckksd
CKKSCTL := $(B)/ckksctl
UNIT_BIN := $(patsubst tests/%.c,$(B)/tests/%,$(UNIT_SRC))
CONFORMANCE_BIN := $(patsubst tests/%.c,$(B)/tests/%,$(CONFORMANCE_SRC))
FUZZ_BIN := $(patsubst tests/%.c,$(B)/tests/%,$(FUZZ_SRC))
PROGRAMS := $(if $(wildcard daemon/main.c),$(CKKSD)) $(if $(CTL_SRC),$(CKKSCTL)) $(if $(CLIENT_SRC),$(LIBCLIENT_SO))
# the daemon with its injected faults, for integration tests
CKKSD_FAULT := $(if $(wildcard daemon/main.c),$(B)/tests/ckksd-fault)
TEST_BINARIES := $(UNIT_BIN) $(CONFORMANCE_BIN) $(FUZZ_BIN) $(CKKSD_FAULT)

.PHONY: help
help: ## list what this Makefile can do
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  CC=gcc|clang  SANITIZER=asan|thread  DEBUG=1  V=1"

.PHONY: deps deps-dev
deps: ## install what demo and test need (apt; asks sudo if you are not root)
	@deploy/deps.sh run
deps-dev: ## deps, and linters, sanitizer runtimes, browsers of metrics
	@deploy/deps.sh dev

.PHONY: report all
report: ## what this machine offers to the build
	@deploy/report.sh "$(CC)" "$(NVCC)" "$(HAVE_SYSTEMD)"
all: $(PROGRAMS) ## build the daemon, the command line and the libraries

.PHONY: demo
demo: deps ## install, build, start the daemon and run encrypted inference on real data
	@$(MAKE) --no-print-directory report all
	@B=$(B) PORT=$(or $(PORT),7000) OPS_PORT=$(or $(OPS_PORT),9464) tests/demo/demo.sh

.PHONY: test test-build
test: deps ## install, build and run every test
	@$(MAKE) --no-print-directory report
	@$(MAKE) --no-print-directory test-build
	@B=$(B) tests/run.sh
test-build: all $(TEST_BINARIES)

.PHONY: asan tsan
asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(MAKE) --no-print-directory SANITIZER=asan test-build
	@B=build/$(notdir $(CC))-asan SANITIZER=asan tests/run.sh
tsan: ## the threaded tests under ThreadSanitizer (clang, libomp, Archer), with its planted race
	@$(MAKE) --no-print-directory CC=clang SANITIZER=thread test-build $(if $(wildcard tests/tsan/planted_race.c),build/clang-thread/tests/planted_race)
	@B=build/clang-thread SANITIZER=thread tests/run.sh

.PHONY: emulated
emulated: ## the tests of the CUDA device on an emulated card, under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(MAKE) --no-print-directory SANITIZER=asan test-build
	@$(MAKE) --no-print-directory SANITIZER=asan EMULATED=1 build/$(notdir $(CC))-asan-emulated/emulated-tests
	@B=build/$(notdir $(CC))-asan-emulated SANITIZER=asan EMULATED=1 tests/run.sh

FUZZ_SECONDS ?= 60
.PHONY: fuzz
fuzz: ## every fuzz target for FUZZ_SECONDS (60) each
	@$(MAKE) --no-print-directory CC=clang SANITIZER=asan FUZZING=1 fuzz-build
	@B=build/clang-asan-fuzz FUZZ_SECONDS=$(FUZZ_SECONDS) tests/fuzz/run.sh
.PHONY: fuzz-build
fuzz-build: $(patsubst tests/%.c,$(B)/libfuzzer/%,$(FUZZ_SRC))

.PHONY: bench long models
bench: all ## timings of operations and programs on this machine
	@$(CKKSCTL) bench ops && $(CKKSCTL) bench program
long: test-build ## what takes too long for every change: soak, 10,000 requests, fresh-machine demo
	@B=$(B) tests/long.sh
models: ## train the example models again and export ONNX (virtual environment, PyPI)
	@tests/models/build.sh

.PHONY: device-bundle
device-bundle: ## one folder (build/bundle) that checks a GPU on another machine: tests, benchmarks, daemon, models
	@test -n "$(CUDA_SRC)" || { echo "device-bundle: no nvcc on this machine"; exit 1; }
	@$(MAKE) --no-print-directory CUDA_ARCH=all all $(B)/device-tests
	@tests/device/bundle.sh $(B) build/bundle

.PHONY: lint format
lint: gen ## formatting, clang-tidy, shellcheck, yamllint, systemd-analyze
	@B=$(B) GEN=$(GEN) tests/lint.sh
format: ## apply clang-format 14
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format-14 -i
.PHONY: gen
gen: $(PROTO_GEN)

PREFIX ?= /usr/local
DESTDIR ?=
.PHONY: install install-client
# a client developer needs neither the daemon nor root: make install-client PREFIX=$HOME/.local
install-client: $(if $(CTL_SRC),$(CKKSCTL)) $(LIBCLIENT_SO) ## install ckksctl, libckksclient, its header and its .pc under PREFIX
	install -Dm755 $(CKKSCTL) $(DESTDIR)$(PREFIX)/bin/ckksctl
	install -Dm644 client/ctl/completion.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ckksctl
	install -Dm644 $(LIBCLIENT_SO) $(DESTDIR)$(PREFIX)/lib/libckksclient.so.0
	ln -sf libckksclient.so.0 $(DESTDIR)$(PREFIX)/lib/libckksclient.so
	install -Dm644 client/include/ckksclient.h $(DESTDIR)$(PREFIX)/include/ckksclient.h
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' client/include/ckksclient.pc.in | \
	    install -Dm644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/pkgconfig/ckksclient.pc
install: all install-client ## install everything under PREFIX (/usr/local), honouring DESTDIR
	install -Dm755 $(CKKSD) $(DESTDIR)$(PREFIX)/sbin/ckksd
	test -e $(DESTDIR)/etc/ckksd/ckksd.conf || install -Dm640 config/ckksd.conf $(DESTDIR)/etc/ckksd/ckksd.conf
	sed 's|@PREFIX@|$(PREFIX)|' deploy/systemd/ckksd.service | install -Dm644 /dev/stdin $(DESTDIR)/lib/systemd/system/ckksd.service
	install -Dm644 deploy/systemd/ckksd.sysusers $(DESTDIR)/usr/lib/sysusers.d/ckksd.conf
	@test -n "$(DESTDIR)" || ldconfig || echo "install: run ldconfig, so that programs find libckksclient"

.PHONY: clean
clean: ## remove build/
	rm -rf build

# --- rules -----------------------------------------------------------------------------------------------------------
# a change of flags rebuilds
FLAGS_STAMP := $(B)/flags
FLAGS_TEXT := $(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) $(WARN)
ifneq ($(FLAGS_TEXT),$(file <$(FLAGS_STAMP)))
  $(shell mkdir -p $(B))
  $(file >$(FLAGS_STAMP),$(FLAGS_TEXT))
endif

CCACHE := $(shell command -v ccache 2>/dev/null)

$(GEN)/%.pb-c.c: proto/%.proto
	@mkdir -p $(GEN)
	$(Q)cd proto && protoc-c --c_out=$(abspath $(GEN)) $*.proto
$(GEN)/rpc.pb-c.c: $(GEN)/package.pb-c.c

$(B)/obj/gen/%.o: $(GEN)/%.c $(FLAGS_STAMP) | gen
	@mkdir -p $(@D)
	$(Q)$(CCACHE) $(CC) $(CFLAGS_GEN) -c $< -o $@

# instruction-set specific files say so in their names
ISA = $(if $(findstring _avx512.c,$<),-mavx512f -mavx512dq -mavx512vl -mavx512ifma -mavx512vbmi -mavx512bw -mavx2 -mfma -mbmi2)$(if $(findstring _avx2.c,$<),-mavx2 -mfma -mbmi2)

$(B)/obj/%.o: %.c $(FLAGS_STAMP) | gen
	@mkdir -p $(@D)
	@echo "  CC  $<"
	$(Q)$(CCACHE) $(CC) $(CFLAGS_ALL) $(ISA) $(WARN) -MMD -MP -c $< -o $@

$(B)/fault/%.o: %.c $(FLAGS_STAMP) | gen
	@mkdir -p $(@D)
	$(Q)$(CCACHE) $(CC) $(CFLAGS_ALL) $(ISA) $(WARN) -DCKKS_FAULT_INJECTION -MMD -MP -c $< -o $@

# the back end as C++ for this machine: every bound of its arithmetic is checked
EMULATED_CXX := $(if $(findstring clang,$(CC)),clang++,g++)
EMULATED_FLAGS := -std=c++17 -O2 -g -pthread -mfma -mavx2 -ffp-contract=off -fno-strict-aliasing -fPIC -fvisibility=hidden -Wall -Wextra \
                  -Wno-unknown-pragmas -I. -Ikernels/cuda/emulated -DCKKSD_CUDA -DCKKS_CUDA_EMULATED -DCKKS_DEBUG_BOUNDS $(SAN_FLAGS)
$(B)/cuda/%-fault.cu.o: kernels/cuda/%.cu $(FLAGS_STAMP)
	@mkdir -p $(@D)
	@echo "  CXX $< (emulated)"
	$(Q)$(CCACHE) $(EMULATED_CXX) $(EMULATED_FLAGS) -DCKKS_FAULT_INJECTION -MMD -MP -x c++ -c $< -o $@
$(B)/cuda/%.o: kernels/cuda/% $(FLAGS_STAMP)
	@mkdir -p $(@D)
	@echo "  CXX $< (emulated)"
	$(Q)$(CCACHE) $(EMULATED_CXX) $(EMULATED_FLAGS) -MMD -MP -x c++ -c $< -o $@

build/cuda-$(CUDA_TAG)/%.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	@echo "  NVCC $<"
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -c $< -o $@
build/cuda-$(CUDA_TAG)/%-fault.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) -DCKKS_FAULT_INJECTION -MMD -c $< -o $@

define archive
	@mkdir -p $(@D)
	@rm -f $@
	$(Q)ar rcs $@ $(filter %.o,$^)
endef

# another choice of cards links anew
CUDA_STAMP := $(if $(CUDA_OBJ),$(B)/cuda-tag)
ifneq ($(CUDA_STAMP),)
ifneq ($(CUDA_TAG),$(file <$(CUDA_STAMP)))
  $(shell mkdir -p $(B))
  $(file >$(CUDA_STAMP),$(CUDA_TAG))
endif
endif
$(LIBCKKS): $(call obj,$(KERNELS_SRC)) $(CUDA_OBJ) $(CUDA_STAMP)
	$(archive)
$(LIBCKKS_FAULT): $(call fault,$(KERNELS_SRC)) $(CUDA_OBJ_FAULT) $(CUDA_STAMP)
	$(archive)
$(LIBPROTO): $(call obj,$(PROTO_SRC)) $(gen_obj)
	$(archive)
$(LIBCLIENT): $(call obj,$(CLIENT_SRC))
	$(archive)
$(LIBCOMPILE): $(call obj,$(COMPILE_SRC))
	$(archive)
$(LIBDAEMON): $(call obj,$(DAEMON_SRC))
	$(archive)
$(LIBSUPPORT): $(call obj,$(SUPPORT_SRC))
	$(archive)

$(LIBCLIENT_SO): $(LIBCLIENT) $(LIBPROTO) $(LIBCKKS) client/lib/ckksclient.map
	@echo "  LD  $@"
	$(Q)$(CC) -shared -Wl,-soname,libckksclient.so.0 -Wl,--version-script=client/lib/ckksclient.map -Wl,--whole-archive $(LIBCLIENT) -Wl,--no-whole-archive \
	    $(LIBPROTO) $(LIBCKKS) $(LDFLAGS_ALL) $(LIBS_CLIENT) $(LIBS_PROTO) $(LIBS_KERNELS) -o $@
$(CKKSD): $(call obj,daemon/main.c) $(LIBDAEMON) $(LIBPROTO) $(LIBCKKS)
	@echo "  LD  $@"
	$(Q)$(CC) $^ $(LDFLAGS_ALL) $(LIBS_DAEMON) $(LIBS_PROTO) $(LIBS_KERNELS) -o $@
$(B)/tests/ckksd-fault: $(patsubst %.c,$(B)/fault/%.o,daemon/main.c $(DAEMON_SRC)) $(LIBSUPPORT) $(LIBPROTO) $(LIBCKKS_FAULT)
	@mkdir -p $(@D)
	@echo "  LD  $@"
	$(Q)$(CC) $(WRAP) $^ $(LDFLAGS_ALL) $(LIBS_DAEMON) $(LIBS_PROTO) $(LIBS_KERNELS) -o $@
$(CKKSCTL): $(call obj,$(CTL_SRC)) $(LIBCOMPILE) $(LIBCLIENT) $(LIBPROTO) $(LIBCKKS)
	@echo "  LD  $@"
	$(Q)$(CC) $^ $(LDFLAGS_ALL) $(LIBS_CLIENT) $(LIBS_PROTO) $(LIBS_KERNELS) -o $@

# Tests link everything, with the fault-injection build of the kernels, and wrapped allocators, calls of the system and of
# libraries (tests/support: alloc_fault, system_fault, library_fault).
WRAPPED := malloc calloc realloc strdup strndup \
           open mkostemp mkstemp read pread write pwrite fsync fdatasync ftruncate fchmod fstat rename renameat2 link linkat mkdir opendir mmap memfd_create pthread_create stat \
           posix_memalign \
           sqlite3_open_v2 sqlite3_exec sqlite3_prepare_v2 sqlite3_step sqlite3_bind_text sqlite3_bind_blob sqlite3_bind_int64 \
           nng_rep0_open nng_req0_open nng_socket_set_size nng_socket_set_ms nng_pipe_notify nng_listener_create nng_listener_set_ptr \
           nng_listener_set_bool nng_listener_start nng_aio_alloc nng_ctx_open nng_msg_alloc nng_msg_dup nng_msg_trim nng_dialer_create \
           nng_dialer_set_ptr nng_dialer_start nng_tls_config_alloc nng_tls_config_own_cert nng_tls_config_ca_chain \
           nng_tls_config_auth_mode nng_tls_config_ca_file nng_tls_config_server_name \
           uv_loop_init uv_async_init uv_pipe_init uv_pipe_bind uv_listen uv_accept uv_read_start uv_write uv_try_write uv_signal_init \
           uv_signal_start uv_fileno
WRAP := $(addprefix -Wl$(comma)--wrap=,$(WRAPPED)) -Wl,-u,__wrap_malloc -Wl,-u,__wrap_open -Wl,-u,__wrap_uv_write
TEST_LIBS = $(LIBSUPPORT) $(if $(DAEMON_SRC),$(LIBDAEMON)) $(if $(COMPILE_SRC),$(LIBCOMPILE)) $(if $(CLIENT_SRC),$(LIBCLIENT)) \
            $(LIBPROTO) $(LIBCKKS_FAULT)
TEST_LINK = $(LDFLAGS_ALL) -lcmocka -lflint -lmpfr -lgmp $(LIBS_DAEMON) $(LIBS_CLIENT) $(LIBS_PROTO) $(LIBS_KERNELS)

define link_test
	@mkdir -p $(@D)
	@echo "  LD  $@"
	$(Q)$(CC) $(WRAP) $^ $(TEST_LINK) -o $@
endef
# the AVX-512 code with each instruction replaced by its definition: checked where the instructions are missing
DEFINED_TEST := $(B)/tests/unit/test_cpu_avx512_defined $(B)/tests/unit/test_limb_avx512_defined
DEFINED_OBJ := $(patsubst %.c,$(B)/defined/%.o,$(wildcard kernels/cpu/*_avx512.c kernels/scheme/*_avx512.c))
$(B)/defined/%.o: %.c tests/support/avx512_defined.h $(FLAGS_STAMP) | gen
	@mkdir -p $(@D)
	@echo "  CC  $< (defined)"
	$(Q)$(CCACHE) $(CC) $(CFLAGS_ALL) -O1 -mavx2 -mfma -mbmi2 -Wno-psabi -DCKKS_DEBUG_BOUNDS $(WARN) -include tests/support/avx512_defined.h \
	    -MMD -MP -c $< -o $@
$(DEFINED_TEST): $(B)/tests/%: $(B)/fault/tests/%.o $(DEFINED_OBJ) $(TEST_LIBS)
	$(link_test)
$(filter-out $(DEFINED_TEST),$(UNIT_BIN)) $(CONFORMANCE_BIN): $(B)/tests/%: $(B)/fault/tests/%.o $(TEST_LIBS)
	$(link_test)
$(patsubst %,$(B)/tests/unit/test_daemon_%,serve order life operate): | $(CKKSD_FAULT)
$(FUZZ_BIN): $(B)/tests/%: $(B)/fault/tests/%.o $(B)/fault/tests/fuzz/driver.o $(TEST_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(WRAP) $^ $(TEST_LINK) -o $@
$(B)/libfuzzer/%: $(B)/fault/tests/%.o $(TEST_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) -fsanitize=fuzzer $(WRAP) $^ $(TEST_LINK) -o $@
$(B)/tests/planted_race: tests/tsan/planted_race.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) $< $(LDFLAGS_ALL) -o $@

# One program with the tests that run on a card, and the daemon with its injected faults: in a bundle the CUDA code is there once,
# not in each test.
DEVICE_TESTS := $(CONFORMANCE_SRC) $(shell grep -lE '(device|program|evaluator|kernel)_fixture\.h|daemon_(fixture|words)\.h|device_(open|health|select)' \
                tests/unit/test_*.c)
DEVICE_TEST_NAMES := $(notdir $(basename $(DEVICE_TESTS)))
# their names, for tests/device/main.c
DEVICE_TESTS_TEXT := \#define DEVICE_TESTS(X) $(patsubst %,X(%),$(DEVICE_TEST_NAMES))
ifneq ($(DEVICE_TESTS_TEXT),$(file <$(GEN)/device_tests.h))
  $(shell mkdir -p $(GEN))
  $(file >$(GEN)/device_tests.h,$(DEVICE_TESTS_TEXT))
endif
DEVICE_DAEMON := $(call fault,$(DAEMON_SRC))
$(B)/multi/ckksd.o: $(B)/fault/daemon/main.o
	@mkdir -p $(@D)
	$(Q)objcopy --redefine-sym main=main_ckksd $< $@
$(patsubst tests/unit/%.c,$(B)/multi/%.o,$(filter tests/unit/%,$(OWN_SRC))): $(B)/multi/%.o: $(B)/fault/tests/unit/%.o
	@mkdir -p $(@D)
	$(Q)objcopy --redefine-sym main=main_$* $< $@
$(B)/multi/%.o: $(SHARED)/fault/tests/conformance/%.o
	@mkdir -p $(@D)
	$(Q)objcopy --redefine-sym main=main_$* $< $@
$(B)/multi/%.o: $(SHARED)/fault/tests/unit/%.o
	@mkdir -p $(@D)
	$(Q)objcopy --redefine-sym main=main_$* $< $@
$(B)/multi/main.o: tests/device/main.c $(GEN)/device_tests.h $(FLAGS_STAMP)
	@mkdir -p $(@D)
	$(Q)$(CCACHE) $(CC) $(CFLAGS_ALL) $(WARN) -c $< -o $@
$(B)/device-tests: $(B)/multi/main.o $(patsubst %,$(B)/multi/%.o,ckksd $(DEVICE_TEST_NAMES)) $(DEVICE_DAEMON) $(TEST_LIBS)
	@echo "  LD  $@"
	$(Q)$(CC) $(CFLAGS_ALL) -Wl,--allow-multiple-definition $(WRAP) $^ $(TEST_LINK) -o $@

.SECONDARY: $(patsubst %.c,$(B)/fault/%.o,$(UNIT_SRC) $(CONFORMANCE_SRC) $(FUZZ_SRC) tests/fuzz/driver.c)
# on the emulated card: that program in each test's place, the daemon among them, and the card's own control
$(B)/emulated-tests: $(B)/device-tests $(B)/tests/test_card
	@printf '#!/bin/sh\nCKKSD_DEVICE_TEST=ckksd exec "$$(dirname "$$0")/../device-tests" "$$@"\n' >$(B)/tests/ckksd-fault
	@chmod 755 $(B)/tests/ckksd-fault
	@touch $@
$(B)/tests/test_card: $(B)/fault/tests/emulated/test_card.o $(LIBCKKS_FAULT)
	@mkdir -p $(@D)
	$(Q)$(CC) $^ $(LDFLAGS_ALL) -lcmocka $(LIBS_KERNELS) -o $@

-include $(shell find $(B)/obj $(B)/fault $(B)/defined $(B)/cuda build/cuda-$(CUDA_TAG) -name '*.d' 2>/dev/null)
