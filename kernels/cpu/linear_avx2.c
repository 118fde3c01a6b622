#include "kernels/cpu/linear_lanes.h"
