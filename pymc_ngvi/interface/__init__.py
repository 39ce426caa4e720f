"""What a user calls: ``pm.fit(method="ngvi")``, its options, and the run of one fit."""
