.PHONY: demo test chaos soak scan fuzz bench release package package-test sbom

demo: ; @tests/run --tools build && cargo run --profile demo -- demo
test: ; @tests/run
chaos:
	@TOLLGATE_POWER_LOSSES=$${TOLLGATE_POWER_LOSSES:-3000} cargo test --quiet -p tollgate-ledger --test ledger power_loss
	@TOLLGATE_SIMULATIONS=$${TOLLGATE_SIMULATIONS:-2000} cargo test --quiet --release -p tollgate-ledger --test ledger simulation
	@TOLLGATE_CHAOS=$${TOLLGATE_CHAOS:-100000} TOLLGATE_CLUSTER_FAULTS=$${TOLLGATE_CLUSTER_FAULTS:-200} \
	    cargo test --quiet --test e2e chaos -- --nocapture
	@TOLLGATE_SCARCE_ROUNDS=$${TOLLGATE_SCARCE_ROUNDS:-20} cargo test --quiet --test e2e of_five_times -- --nocapture --test-threads 1
	@tests/rollback
soak: SECONDS ?= 1800
soak:
	@cargo build --quiet --release
	@TOLLGATE_SOAK_SECONDS=$(SECONDS) TOLLGATE_CHAOS_PROGRAM=$${CARGO_TARGET_DIR:-$$PWD/target}/release/tollgate \
	    cargo test --quiet --test e2e after_random_faults -- --nocapture
scan: ; @cargo build --quiet --locked && tests/scan "$${CARGO_TARGET_DIR:-$$PWD/target}/debug/tollgate"
fuzz: ; @fuzz/run
bench: ; @benches/run && benches/postgres && benches/cluster && benches/split && benches/upgrade
release: ; @benches/pgo
package: ; @packages/build
# Of the program that the tests use, which is built fast and packaged with its size.
package-test:
	@cargo build --quiet --locked
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && packages/build --profile dev --output "$$dir" && packages/test "$$dir"/*.deb && \
	    packages/test-image "$${CARGO_TARGET_DIR:-$$PWD/target}/debug/tollgate" 200 && \
	    packages/check-kubernetes "$${CARGO_TARGET_DIR:-$$PWD/target}/debug/tollgate"
sbom: ; @packages/sbom tollgate.cdx.json
