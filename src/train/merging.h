// The end of a run with adapters: the adapted model as a whole checkpoint.
#pragma once

#include "train/session.h"

namespace bhyt::train {

// Where lora.merge asks for it and it is not there yet: of the adapter that train.select chooses. All ranks call it.
void merge_adapters(Session& s);

}  // namespace bhyt::train
