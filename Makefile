.PHONY: demo test chaos fuzz bench release

demo: ; @tests/run --tools build && cargo run --profile demo -- demo
test: ; @tests/run
chaos:
	@TOLLGATE_POWER_LOSSES=$${TOLLGATE_POWER_LOSSES:-3000} cargo test --quiet -p tollgate-ledger --test ledger power_loss
	@TOLLGATE_CHAOS=$${TOLLGATE_CHAOS:-100000} cargo test --quiet --test e2e chaos -- --nocapture
fuzz: ; @fuzz/run
bench: ; @benches/run && benches/postgres
release: ; @benches/pgo
