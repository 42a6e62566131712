// The tokenizer that goes with a model tuned for a chat template.
#pragma once

#include <memory>

#include "text/chat_template.h"

namespace bhyt {

// The format's tokenizer and its missing() tokens as special ones; the template's end token, where it brings one, is eos and a stop. What
// save() writes names eos_token, pad_token (the end token) and chat_template, so that transformers and `bhyt chat` take the template
// up from there. Ids of texts are those that the format gives.
std::unique_ptr<Tokenizer> chat_tokenizer(const ChatFormat& format);

}  // namespace bhyt
