#include "kernels/scheme/limb_lanes_internal.h"
