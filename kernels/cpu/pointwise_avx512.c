#include "kernels/cpu/pointwise_lanes.h"
