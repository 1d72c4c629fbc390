module kvc.dev/kvc/tests

go 1.19

require kvc.dev/kvc v0.0.0

replace kvc.dev/kvc => ../kvc
