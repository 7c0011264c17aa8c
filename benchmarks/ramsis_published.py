"""Figures that the RAMSIS paper reports, of its prototype: tables 3 and 4 (appendix F), sections 7.1 and 7.2.

Late queries in percent, by the number of workers or the load: for each of the task's three SLOs RAMSIS, Jellyfish+ and
ModelSwitching. The text half of table 4 is left out; all of it is below 1%.
"""

from __future__ import annotations

SYSTEMS = ("ramsis", "jellyfish_plus", "model_switching")
Late = dict[int, tuple[tuple[float, float, float], ...]]

TABLE_3_IMAGE: Late = {
    20: ((93.38, 100, 100), (81.77, 99.9, 99.9), (58.61, 99.76, 99.78)),
    30: ((0.643, 0.8607, 0.9707), (0.4408, 0.0047, 0.0121), (0.0592, 0.2152, 0.1474)),
    40: ((0.2296, 0.6137, 1.307), (0.0369, 0.3482, 1.0709), (0.1023, 0.3209, 0.2147)),
    50: ((0.05, 0.1041, 0.203), (0.0297, 0.0588, 0.1464), (0.0129, 0.0498, 0.1043)),
    60: ((0.1277, 0.4141, 0.4136), (0.1471, 0.226, 0.6517), (0.1607, 0.0863, 0.2296)),
    70: ((0.2231, 0.7234, 0.2368), (0.5036, 0.0913, 0.0937), (0.2586, 0.0556, 0.1523)),
    80: ((0.4329, 0.8292, 0.608), (0.2226, 1.046, 0.747), (0.154, 0.0824, 0.3155)),
    90: ((0.4914, 0.1652, 0.2141), (0.1132, 0.2618, 0.2861), (0.1117, 0.1972, 0.2042)),
    100: ((0.4428, 0.5811, 0.4767), (0.3213, 0.4693, 0.5), (0.4201, 0.2911, 0.1949)),
}
TABLE_3_TEXT: Late = {
    20: ((0.0009, 0.0032, 0.2244), (0.0001, 0.0144, 0.0727), (0.0009, 0, 0.0043)),
    30: ((0.0013, 0.6427, 0.0005), (0.0051, 0.0005, 0.0023), (0.0101, 0.0004, 0)),
    40: ((0.0157, 0.0016, 0.0013), (0.0174, 0.0386, 0.0188), (0.0024, 0.0072, 0.0083)),
    50: ((0.0354, 0.0009, 0.0406), (0.0492, 0.0081, 0.0863), (0.0119, 0.0293, 0.0964)),
    60: ((0.0557, 0.0063, 0.0615), (0.4642, 0.0892, 0.7564), (0.0591, 0.0416, 0.058)),
    70: ((0.1366, 0.0011, 0.1308), (0.0235, 0.0437, 0.098), (0.0281, 0.0029, 0.008)),
    80: ((0.068, 0.1382, 0.0775), (0.1376, 0.2673, 0.3012), (0.0049, 0.0002, 0.0165)),
    90: ((0.0122, 0.0063, 0.0549), (0.0187, 0.0163, 0.054), (0.0044, 0.0002, 0.0029)),
    100: ((0.0201, 0.6011, 0.2081), (0.0647, 0.6527, 0.0678), (0.0162, 0.0193, 0.0557)),
}
TABLE_3 = {"image": TABLE_3_IMAGE, "text": TABLE_3_TEXT}
TABLE_4_IMAGE: Late = {
    400: ((0.0669, 0, 1.2377), (0.0252, 0.0419, 0), (0.5038, 0, 0)),
    800: ((0.1089, 0.2302, 1.318), (0.4402, 0.2306, 2.6245), (0.7513, 0.0587, 0.5998)),
    1200: ((0.499, 0.0279, 0.0306), (0.0725, 0.8504, 1.4995), (0.1312, 0.209, 0.6742)),
    1600: ((0.3637, 0.1087, 0.0543), (0.339, 0, 0.0084), (0.2324, 0.1366, 1.7317)),
    2000: ((0.3076, 0.015, 0), (0.2876, 0.0067, 0.0284), (0.1739, 0.0938, 0.0033)),
    2400: ((0.0516, 0.014, 0.0084), (0.0168, 0.134, 0.1173), (0.0112, 0.3522, 0.0028)),
    2800: ((0.2288, 0.0695, 0.0084), (0.2278, 1.0823, 0.097), (0.0239, 0.4759, 0.1678)),
    3200: ((0.4786, 3.6645, 0.0587), (0.0745, 0.1419, 0.0126), (0.0935, 0.6393, 0.0032)),
    3600: ((2.454, 2.724, 0.0019), (0.3375, 0.6982, 0), (0.556, 0.3343, 0.1402)),
    4000: ((19.46, 24.119, 97.874), (4.392, 4.2465, 0.021), (1.797, 2.8462, 0.7437)),
}

# Points of accuracy of RAMSIS over the other, on average and at most, where both have less than 5% late.
GAINS_ON_TRACE = {
    ("image", "model_switching"): (4.43, 15.09),
    ("image", "jellyfish_plus"): (4.35, 15.08),
    ("text", "model_switching"): (1.93, 3.85),
    ("text", "jellyfish_plus"): (2.01, 4.55),
}
GAINS_AT_CONSTANT_LOAD = {  # the highest is given for both rivals together
    ("image", "model_switching"): (4.82, 15.42),
    ("image", "jellyfish_plus"): (4.95, 15.42),
    ("text", "model_switching"): (2.25, 4.88),
    ("text", "jellyfish_plus"): (2.26, 4.88),
}
# Percent of the other's workers that RAMSIS saves for the same accuracy on the trace, on average and at most.
WORKERS_SAVED = {
    ("image", "model_switching"): (20.01, 50.00),
    ("image", "jellyfish_plus"): (17.53, 42.86),
    ("text", "model_switching"): (25.31, 44.44),
    ("text", "jellyfish_plus"): (31.25, 75.00),
}
# Image task, 150 ms, as the published simulation prints them, whatever is late.
SIMULATED_ON_TRACE = {"jellyfish_plus": (5.70, 8.07), "model_switching": (3.48, 4.63)}  # 60, 70 and 80 workers
SIMULATED_AT_CONSTANT_LOAD = {"jellyfish_plus": (3.70, 15.04), "model_switching": (1.84, 6.71)}  # 60 workers
MEAN_LATE_ON_TRACE = {"ramsis": 0.14, "model_switching": 0.24, "jellyfish_plus": 0.21}
MEAN_LATE_AT_CONSTANT_LOAD = {"ramsis": 0.30, "model_switching": 0.23, "jellyfish_plus": 0.39}
