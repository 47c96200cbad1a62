module berth.dev/vmpool

go 1.22
