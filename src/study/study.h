// A study: what is run at each scale, and the table that its runs come to. One readable YAML file each (studies/, docs/studies.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "study/grid.h"

namespace bhyt::study {

// A column of a study's table: something that is known of every run, or a value out of what a command printed about it.
struct Column {
  std::string name;
  std::string of;           // loss, valid_loss, … (table.h lists them); "" where `path` says it
  std::string path;         // models.0.layers.*.approximation.r
  std::string as = "mean";  // of several values: mean, min, max, last
  int digits = 4;
};

// The paper's own table: rows by label, values in the order of the columns, null where it gives none.
struct PaperNumbers {
  std::string at;  // its scale
  std::vector<std::string> columns;
  std::vector<std::pair<std::string, std::vector<Json>>> rows;
};

struct Target {
  std::string row;  // whose loss is to be reached
  double at = 1;    // where it has that loss, as a share of its steps
};

struct SynthData {
  double tokens = 0;  // 0: the data is the user's to name
  bool documents = false;
  std::int64_t conversations = 0;  // made of the documents, for fine-tuning
};

// A study at one scale.
struct Study {
  std::string name, title, paper, question, scale;
  std::string note;                                                        // what a reader has to know of this scale
  std::string text;                                                        // {text} of `after`: what a model reads
  Request request;                                                         // base and axes
  std::vector<std::pair<std::string, std::vector<std::string>>> commands;  // a row's label and its command, where nothing is trained
  std::vector<std::string> after;  // a command for every finished run: {dir}, {valid} and {text} stand for its directory and texts
  bool counts_statistics = false;  // a table of the methods themselves
  bool alone = false;              // speeds are compared: one run at a time unless --jobs says otherwise
  Json first;                      // base and axes of models that are trained first; {first} stands for their folder
  std::string rows_path;           // rows are the items of this list of what the command printed, by their name
  std::vector<Column> columns;     // none: the sweep's own table
  std::string rank_by;             // a column's name; "" = the validation loss
  bool lower_is_better = true;
  std::optional<Target> target;
  std::optional<PaperNumbers> numbers;
  SynthData synth;
};

struct StudyHead {
  std::string name, title, paper;
  std::vector<std::string> scales;
};
std::vector<StudyHead> list_studies();

// `name`: one of them, or a YAML file. UsageError for a scale that it does not have. seeds 0: as many as the scale has.
Study open_study(const std::string& name, const std::string& scale, int seeds, const std::vector<std::string>& words);

}  // namespace bhyt::study
