module samples

go 1.19

require kvc.dev/kvc v0.0.0

// Where the package puts it; `go mod edit -replace kvc.dev/kvc=FOLDER` for a module elsewhere.
replace kvc.dev/kvc => /usr/share/gocode/src/kvc.dev/kvc
