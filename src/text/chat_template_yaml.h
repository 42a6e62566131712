// Chat templates of a user's own, in YAML with the fields of a row of the table:
//
//   name: mine                                 # otherwise the file's name
//   prefix: ["{bos}"]                          # lists of slots (one text is a list of one); each slot is tokenized by itself
//   system: ["<|system|>\n{c}<|end|>\n"]       # {c} is the message, {bos} and {eos} alone are those tokens
//   user: ["<|user|>\n{c}<|end|>\n<|assistant|>\n"]
//   answer: ["{c}<|end|>\n"]
//   default_system: You are brief.             # of a conversation that has none
//   tokens: ["<|end|>", "<|user|>"]            # special tokens it brings; the first ends an answer
//   stops: ["\n<|user|>"]                      # texts where an answer is cut off
//   trims: false                               # contents lose the white space around them
#pragma once

#include <string>

#include "text/chat_template.h"

namespace bhyt {

// UsageError naming the key where a field is unknown, of the wrong kind or missing (user and answer must be there, with {c} in them).
ChatTemplate parse_chat_template(const std::string& yaml, const std::string& where);

// A row of the table by its name, or a file whose name ends in .yaml or .yml.
ChatTemplate load_chat_template(const std::string& name_or_file);

}  // namespace bhyt
