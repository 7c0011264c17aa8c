"""An ONNX model behind MLServer: the runtime that its settings, written by serve_peers, name."""

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class OnnxRuntime(MLModel):
    async def load(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = self.settings.parameters.uri
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.input_name = self.session.get_inputs()[0].name
        return True

    async def predict(self, payload):
        batch = NumpyCodec.decode_input(payload.inputs[0])
        output = self.session.run(None, {self.input_name: batch.astype("float32", copy=False)})[0]
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("probabilities", output)])
